"""Every fact of every recorded host: expected, found, right or wrong.

Usage: python benchmarks/probe_hosts.py [FOLDER OF HOSTS]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from parastrat.errors import ParastratError
from parastrat.probe import hardware_of, read_machine
from parastrat.probe.summary import summary

HOSTS = Path(__file__).resolve().parents[1] / "tests" / "probe" / "hosts"
WIDTH = 34
#: a note about the record's format, which no probe can find
NOTES = frozenset({"gfx_target_version is a line in properties, not a file"})


def main(folder: Path) -> int:
    """Print the table; return the number of wrong facts."""
    right, wrong = 0, 0
    print(f"{'host':<20}{'fact':<19}{'expected':<{WIDTH}}  {'found':<{WIDTH}}")
    for root in sorted(path for path in folder.iterdir() if (path / "expected.json").is_file()):
        expected = json.loads((root / "expected.json").read_text(encoding="utf-8"))
        start = time.perf_counter()
        found = found_in(root)
        took = time.perf_counter() - start
        for fact, value in expected.items():
            if fact == "warn":
                value = [note for note in value if note not in NOTES]  # noqa: PLW2901
            is_right = fact in found and found[fact] == value
            right, wrong = right + is_right, wrong + (not is_right)
            shown = f"{cell(value):<{WIDTH}}  {cell(found.get(fact, 'absent')):<{WIDTH}}"
            print(f"{root.name:<20}{fact:<19}{shown}  {'right' if is_right else 'WRONG'}")
        print(f"{root.name:<20}read in {took * 1e3:.0f} ms\n")
    print(f"{right} right, {wrong} wrong")
    return wrong


def found_in(root: Path) -> dict[str, Any]:
    """Return what the probe says of a host."""
    machine = read_machine(root)
    try:
        return summary(machine, hardware_of(machine))
    except ParastratError:
        return summary(machine, None)


def cell(value: Any) -> str:
    """Return a value in the width of its column."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]) if len(sys.argv) > 1 else HOSTS) else 0)
