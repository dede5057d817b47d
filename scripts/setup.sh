#!/usr/bin/env bash
# Makes a virtual environment with parastrat in it, and prints the path of its Python.
#
#   scripts/setup.sh [EXTRA,...]      extras of pyproject.toml, such as dev
#
# The environment is $PARASTRAT_VENV, or .venv in the repository; one that is there is used as it is, and
# a torch that is in it stays. All messages go to stderr.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${PARASTRAT_VENV:-$root/.venv}
python=$venv/bin/python

new_enough() {
    "$1" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if command -v "$name" >/dev/null && new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "parastrat needs Python 3.11 to 3.14, and none of them is on the PATH" >&2
    return 2
}

{
    if ! [ -x "$python" ]; then
        base=$(find_python)
        echo "making $venv with $base"
        "$base" -m venv "$venv"
    fi
    # torch first and by itself: pip must not weigh it against the rest
    if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
        echo "installing torch"
        "$python" -m pip install --quiet --constraint "$root/scripts/constraints.txt" torch
    fi
    echo "installing parastrat"
    "$python" -m pip install --quiet --editable "$root${1:+[$1]}"
    # once, also where PYTHONDONTWRITEBYTECODE would have every process do it again
    "$python" -m compileall -q "$root/parastrat"
} >&2

echo "$python"
