# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Write the profiles of accelerators and nodes that nobody has gone over by hand.

``data/gpus.csv`` and ``data/clusters.csv`` are collected tables with a source for each row;
``data/other_nodes.csv`` has the same columns, for devices that no collected node has; ``data/hosts.csv``
has the cores and the memory of hosts where their vendor or operator states them; ``data/rules.toml`` says
by which rule a figure follows that no table states. Every figure gets its kind and its source.

A profile that this script wrote says so in its first line. Any other is somebody's own: it is never
written over, and its device or node is left out here.

Usage: python scripts/make_profiles.py [--check]
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from device_profile import device_text
from node_profile import node_name, node_text
from profile_figures import HEADER, rows, rules

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT / "profiles"


def is_curated(path: Path) -> bool:
    """Whether a profile is somebody's own: it is there, and this script did not write it."""
    return path.is_file() and not path.read_text(encoding="utf-8").startswith(HEADER)


def written(profiles: Path = PROFILES) -> Iterator[tuple[Path, str]]:
    """Yield each profile that this script writes, with its text.

    Args:
        profiles: where the profiles are; those that somebody wrote by hand are left out.
    """
    rule = rules()
    devices = {row["id"]: row for row in rows("gpus.csv")}
    hosts = {row["node"]: row for row in rows("hosts.csv")}
    aliases = tomllib.loads((profiles / "nodes" / "aliases.toml").read_text(encoding="utf-8"))
    for row in devices.values():
        path = profiles / "devices" / f"{row['id']}.toml"
        if not is_curated(path):
            yield path, device_text(row, rule)
    for row in (*rows("clusters.csv"), *rows("other_nodes.csv")):
        path = profiles / "nodes" / f"{aliases.get(row['id'], node_name(row, rule))}.toml"
        if not is_curated(path):
            yield path, node_text(row, devices[row["gpu"]], rule, hosts.get(path.stem))


def main() -> int:
    """Write what differs, or with ``--check`` only name it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something differs")
    check = parser.parse_args().check
    stale = [
        (path, text)
        for path, text in written()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
