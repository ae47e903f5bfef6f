#!/bin/bash
# bench-setup.sh: makes build/bench-venv, where the engines live that Bones is measured against (extra `bench` of pyproject.toml).
# Apart from .venv, so that nothing of them is ever near a node. llama.cpp is built here, for this very processor: some
# minutes. Safe to repeat; quick when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1mbench-setup\033[0m  %s\n' "$*"; }

venv=$(realpath -m build/bench-venv)
wanted=$(.venv/bin/python - <<'PY'
import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
print("\n".join(project["optional-dependencies"]["bench"]))
PY
)
stamp="$wanted for $(grep -m1 'model name' /proc/cpuinfo || uname -m)"
if [ -e "$venv/stamp" ] && [ "$(cat "$venv/stamp")" = "$stamp" ]; then exit 0; fi

if ! command -v g++ >/dev/null; then
    if [ "$(id -u)" != 0 ]; then
        echo "bench-setup: the Debian package g++ is missing; install it as root: apt-get install g++" >&2
        exit 1
    fi
    say "installing Debian package g++"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ >/dev/null
fi

say "making build/bench-venv with: ${wanted//$'\n'/, }"
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
# Without the cache: a wheel there may have been built for another processor, or with other flags. Without AMX: this
# version's tile kernels are killed by SIGILL in their first matrix product on processors that have it.
flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
[ "$(uname -m)" = x86_64 ] || flags=
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'" \
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir --no-binary llama-cpp-python \
    $wanted > build/bench-setup.log 2>&1 || { tail -n 40 build/bench-setup.log >&2; exit 1; }
printf '%s' "$stamp" > "$venv/stamp"
say "done"
