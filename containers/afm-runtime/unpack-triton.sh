#!/bin/bash
# unpack-triton.sh [DEST]: NVIDIA's tritonserver and its Python backend out of the locked nvidia-pytriton wheel, in DEST
# (default build/triton). Only files are taken: the package is neither installed nor imported. Safe to repeat and to
# interrupt: everything is made in a folder beside DEST that takes DEST's place as the last step.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dest=$(realpath -m "${1:-$root/build/triton}")
python=${PYTHON:-$root/.venv/bin/python}
lock=$root/requirements-demo.lock

# The stub embeds Python: its libpython must be the very one of the interpreter behind the virtual environment.
libpython=$("$python" - <<'PY'
import ctypes, os, sys, sysconfig
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
folder = sysconfig.get_config_var("LIBDIR") or ""
places = [folder, os.path.join(folder, sysconfig.get_config_var("MULTIARCH") or "")]
path = next((p for p in (os.path.join(d, name) for d in places) if os.path.exists(p)), None)
if path is None:
    sys.exit(f"no {name} beside {sys.base_prefix}: install it (Debian: libpython{sys.version_info[0]}.{sys.version_info[1]})")
library = ctypes.CDLL(path)
library.Py_GetVersion.restype = ctypes.c_char_p
found = library.Py_GetVersion().decode().split()[0]
if found != sys.version.split()[0]:
    sys.exit(f"{path} is Python {found}, the virtual environment runs {sys.version.split()[0]}")
print(os.path.realpath(path))
PY
)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
stamp=$( (cat "$0"; sed -n '/^nvidia-pytriton==/,/[^\\]$/p' "$lock"; echo "$libpython $version $here") | sha256sum)
if [ "$(cat "$dest/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

echo "unpack-triton: taking tritonserver out of the nvidia-pytriton wheel (about 50 MB) into $dest"
mkdir -p "$(dirname "$dest")"
exec 9>"$dest.lock"
flock -w 300 9 || { echo "unpack-triton: another run has held $dest.lock for 300 s" >&2; exit 1; }
[ "$(cat "$dest/stamp" 2>/dev/null)" = "$stamp" ] && exit 0
rm -rf "$dest".new.*
new=$(mktemp -d "$dest.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
sed -n '/^nvidia-pytriton==/,/[^\\]$/p' "$lock" > "$new/lock"
"$python" -m pip download -q --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: -d "$new/wheel" -r "$new/lock"
"$python" -m zipfile -e "$new"/wheel/nvidia_pytriton-*.whl "$new/files"
mkdir "$new/triton"
mv "$new/files/pytriton/tritonserver" "$new/files/nvidia_pytriton.libs" "$new/triton/"
# The wheel's RPATH reaches its libraries two folders up from each binary's folder: keep that distance.
mkdir "$new/triton/pytriton" && mv "$new/triton/tritonserver" "$new/triton/pytriton/"
server=$new/triton/pytriton/tritonserver
cp "$server/python_backend_stubs/$version/triton_python_backend_stub" "$server/backends/python/"
rm -r "$server/python_backend_stubs"
chmod +x "$server/bin/tritonserver" "$server/backends/python/triton_python_backend_stub"
libraries=$new/triton/nvidia_pytriton.libs
for name in "libpython$version.so.1.0" $(cd "$libraries" && ls | grep "^libpython3.*\.${version#3.}\.so" || true); do
    ln -sf "$libpython" "$libraries/$name"
done
ln -s "$here/model_repository" "$new/triton/model_repository"
echo "$stamp" > "$new/triton/stamp"
rm -rf "$dest"
mv "$new/triton" "$dest"
