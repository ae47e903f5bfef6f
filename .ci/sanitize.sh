#!/bin/bash
# Runs the tests of Bones' crates under AddressSanitizer: memory beyond its end, after its end, and leaks.
# Exits with 77 where that cannot be done, saying why: our own crates are instrumented, the standard library is not.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-gnu
export RUSTC_BOOTSTRAP=1 # -Z on a stable compiler

skip() { printf 'sanitize: skipped: %s\n' "$*"; exit 77; }

[ "$(uname -sm)" = "Linux x86_64" ] || skip "only on Linux x86_64, this is $(uname -sm)"
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'fn main() {}' > "$probe/main.rs"
if ! rustc -Zsanitizer=address --target "$target" -o "$probe/main" "$probe/main.rs" > "$probe/log" 2>&1; then
    skip "$(rustc --version) builds nothing with -Zsanitizer=address: $(grep -m 1 error "$probe/log")"
fi
"$probe/main" || skip "a program with AddressSanitizer does not run here"

# The dev profile is optimised and has no link-time optimisation, which would cost minutes.
RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=${SANITIZE_TARGET_DIR:-target/asan} \
    cargo test --quiet --target "$target" -p tie-bones-cpu -p tie-bones-model --lib --tests
