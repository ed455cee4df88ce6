#!/bin/sh
# Baton's own requirements as wheels in a folder, for a machine with a GPU and without a network that
# has torch, Triton, CuPy, transformers and pytest already: `WHEELS=DIR tests/gpu/run.sh` takes them.
#   PYTHON=python3.12 tests/gpu/wheels.sh DIR [VERSION of Python there, 3.12]
[ -n "$1" ] || { sed -n 2,4p "$0"; exit 2; }
mkdir -p "$1" && DIR=$(cd "$1" && pwd) || exit 1
cd "$(dirname "$0")/../.." || exit 1
THERE="numpy packaging tokenizers safetensors huggingface-hub jinja2 tqdm" # with the others
WANTED=$("${PYTHON:-python3}" -c '
import re, sys, tomllib
with open("pyproject.toml", "rb") as file:
    for wanted in tomllib.load(file)["project"]["dependencies"]:
        if re.split("[<>=~!]", wanted)[0] not in sys.argv[1].split():
            print(wanted)
' "$THERE") || exit 1
# shellcheck disable=SC2086
"${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --disable-pip-version-check \
    --implementation cp --python-version "${2:-3.12}" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_26_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_12_x86_64 --platform manylinux_2_5_x86_64 \
    --platform manylinux1_x86_64 \
    -d "$DIR" $WANTED || exit 1
du -sh "$DIR"
