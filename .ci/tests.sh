#!/bin/bash
# Runs every tier that this machine can run and prints a summary by tier. Exits non-zero when one failed. A tier that ends
# with 77 says that it cannot run here, and why: it counts as skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
failed=0
declare -a summary

tier() { # NAME COMMAND...
    local name=$1 begin=$SECONDS verdict=passed; shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@"
    case $? in
        0) ;;
        77) verdict=skipped ;;
        *) verdict=FAILED failed=1 ;;
    esac
    summary+=("$(printf '%-12s %-7s %4d s' "$name" "$verdict" $((SECONDS - begin)))")
}

tier rust cargo test --workspace --release --quiet
tier loom env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --quiet -p tie-bones-cpu --test loom_pool
tier asan .ci/sanitize.sh
for name in style unit contract engine integration security; do
    [ -d "tests/$name" ] || continue
    workers=(-n 2)
    case $name in integration | security | engine) workers=() ;; esac
    tier "$name" "$python" -m pytest "tests/$name" -q "${workers[@]}"
done
printf '\nsummary by tier\n'
printf '  %s\n' "${summary[@]}"
exit $failed
