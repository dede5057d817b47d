# ruff: noqa: INP001, S603, T201 - a script, which runs git and reports by printing
"""Date the peaks that came with a commit: ``date`` in peak_memory.csv, from the repository's history.

Usage: python scripts/date_measurements.py CHECKOUT...

A checkout's folder is named as its repository is, such as ``torchtitan``; a bare one's ends in ``.git``.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "peak_memory.csv"
#: how a source that is a commit is written
_COMMIT = re.compile(r"^[\w.-]+/(?P<repository>[\w.-]+) commit (?P<commit>[0-9a-f]{7,40})\b")


def committed(checkout: Path, commit: str) -> str:
    """Return the day of a commit, YYYY-MM-DD."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%cs", commit]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def dated(path: Path, checkouts: dict[str, Path]) -> int:
    """Write the dates of a table's runs; returns how many there are."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = [name for name in reader.fieldnames or () if name != "date"]
        rows = list(reader)
    days: dict[tuple[str, str], str] = {}
    for row in rows:
        found = _COMMIT.match(row["source"])
        if found is None or found["repository"] not in checkouts:
            continue
        key = found["repository"], found["commit"]
        if key not in days:
            days[key] = committed(checkouts[key[0]], key[1])
        row["date"] = days[key]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*columns, "date"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return sum(bool(row.get("date")) for row in rows)


def main() -> None:
    """Date the table."""
    checkouts = {path.name.removesuffix(".git"): path for path in map(Path, sys.argv[1:])}
    print(f"{dated(TABLE, checkouts)} runs have a date")


if __name__ == "__main__":
    main()
