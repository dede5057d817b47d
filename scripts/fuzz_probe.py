# ruff: noqa: INP001, T201, S311, BLE001 - a script, which reports by printing whatever goes wrong
"""Damage recorded hosts at random and probe them: a value or a ProbeError, within two seconds.

Usage: python scripts/fuzz_probe.py [INPUTS] [FIRST SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from probe.mutated_hosts import HOSTS, Working, damaged, timed

LIMIT_S = 2.0


def main(inputs: int, first: int) -> int:
    """Probe so many damaged hosts; return the number of faults."""
    faults, read, slowest = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as scratch:
        pristine = sorted(path for path in HOSTS.iterdir() if path.is_dir())
        hosts = [Working(root=Path(scratch) / path.name, pristine=path) for path in pristine]
        for seed in range(first, first + inputs):
            draw = random.Random(seed)
            host = draw.choice(hosts)
            with damaged(host, draw) as told:
                took = 0.0
                try:
                    was_read, took = timed(host.root, LIMIT_S)
                    read += was_read
                except Exception:
                    faults += 1
                    print(f"seed {seed}: {host.root.name}: {told}\n{traceback.format_exc()}", flush=True)
                slowest = max(slowest, took)
                if took > LIMIT_S:
                    faults += 1
                    print(f"seed {seed}: {took:.1f} s: {host.root.name}: {told}")
    print(
        f"{inputs:,} damaged hosts: {read:,} read, {inputs - read - faults:,} refused, {faults} faults; "
        f"slowest {slowest:.2f} s"
    )
    return faults


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(1 if main(*(numbers or [20_000]), *([0] if len(numbers) < 2 else [])) else 0)
