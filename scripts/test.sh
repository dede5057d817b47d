#!/usr/bin/env bash
# Installs parastrat with what its tests need, and runs them, two files at a time.
#
#   scripts/test.sh [PYTEST ARGUMENTS]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$("$root/scripts/setup.sh" dev)
cd "$root"
exec "$python" -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"
