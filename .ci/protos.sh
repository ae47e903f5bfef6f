#!/bin/bash
# protos.sh [--check]: writes src/tie/api from protos/, or says what differs from what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
export PATH="$PWD/.venv/bin:$PATH"
# The generated packages live under tie.api: the proto path of a file is its Python module.
mkdir -p "$out/in/tie/api"
cp -r protos/tie/api/. "$out/in/tie/api/"
cp -r protos/triton "$out/in/tie/api/triton"
mapfile -t files < <(cd "$out/in" && find tie -name '*.proto' | sort)
mkdir "$out/py"
"$python" -m grpc_tools.protoc -I "$out/in" --python_out="$out/py" --mypy_out="quiet:$out/py" "${files[@]/#/$out/in/}"
mapfile -t services < <(cd "$out/in" && grep -l '^service ' "${files[@]}")
"$python" -m grpc_tools.protoc -I "$out/in" --grpc_python_out="$out/py" --mypy_grpc_out="quiet:$out/py" "${services[@]/#/$out/in/}"
find "$out/py/tie/api" -type d -exec sh -c 'test -e "$1/__init__.py" || echo "\"\"\"Generated from protos/; never edited.\"\"\"" > "$1/__init__.py"' _ {} \;
if [ "${1:-}" = --check ]; then
    diff -r -x __pycache__ "$out/py/tie/api" src/tie/api || { echo "src/tie/api is not what protos/ generate: run .ci/protos.sh" >&2; exit 1; }
else
    rm -rf src/tie/api
    cp -r "$out/py/tie/api" src/tie/api
fi
