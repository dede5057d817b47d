#!/usr/bin/env bash
# Installs parastrat with what its tests need, and runs them, three files at a time: many wait for processes
# that they start, and two leave a core idle then.
#
#   scripts/test.sh [PYTEST ARGUMENTS]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$("$root/scripts/setup.sh" dev)
cd "$root"
exec "$python" -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder "$@"
