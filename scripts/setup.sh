#!/bin/sh
# usage: scripts/setup.sh VENV [EXTRA]
# Creates VENV with a supported Python and installs the project there, editable, with the EXTRA.
# Compiles the kernels into the tree where there is a C++ compiler; needs none. Touches nothing else
# outside VENV and pip's cache. PYTHON: the Python to use; TORCH_INDEX: see install_torch.py.
set -eu
venv=$1
extra=[torch${2:+,$2}]

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "baton needs Python 3.11, 3.12 or 3.13, and found none of them." \
        "  Debian 12 or 13:  apt-get install -y python3 python3-venv"
}

if ! supported "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python lacks the venv module." "  Debian 12 or 13:  apt-get install -y python3-venv"
    "$python" -m venv --clear "$venv"
fi
began=$(date +%s)
echo "installing baton-serving$extra into $venv: some minutes the first time" >&2
echo "1/2 PyTorch" >&2
"$venv/bin/python" scripts/install_torch.py
echo "2/2 the rest; where there is a C++ compiler, kernels are compiled, a minute or two" >&2
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --editable ".$extra"
echo "installed in $(($(date +%s) - began)) s" >&2
