#!/bin/sh
# All that only a GPU can show, in eight minutes at most: kernels, passes, pulls and handoffs beside
# what the device could do, and tests. Rows as they come, a table, then one line of JSON; without a
# GPU it says so. Nothing has to be installed but what Baton needs.
#   PYTHON=python3 tests/gpu/run.sh [--parts kernels steps ...] [--output FILE]
#   WHEELS=DIR  a folder made by wheels.sh, where the network is not to be had
[ -z "$WHEELS" ] || WHEELS=$(cd "$WHEELS" && pwd) || exit 1
cd "$(dirname "$0")/../.." || exit 1
if [ -z "$PYTHON" ]; then
    PYTHON=.venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=python3
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" # workers look for the code there
if [ -n "$WHEELS" ]; then
    SITE=$(mktemp -d) || exit 1
    trap 'rm -rf "$SITE"' EXIT
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --disable-pip-version-check --target "$SITE" "$WHEELS"/*.whl || exit 1
    PYTHONPATH="$PYTHONPATH:$SITE"
fi
export PYTHONPATH PYTHONUNBUFFERED=1 TRITON_INTERPRET=0
"$PYTHON" -m tests.gpu.run "$@"
