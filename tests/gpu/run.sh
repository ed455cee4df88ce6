#!/bin/sh
# All that only a GPU can show: tests, floors, kernels and pulls beside them. A table, then one line
# of JSON; a few minutes. Without a GPU it says so. PYTHON=... for another interpreter.
cd "$(dirname "$0")/../.." || exit 1
TRITON_INTERPRET=0 exec "${PYTHON:-.venv/bin/python}" -m tests.gpu.run "$@"
