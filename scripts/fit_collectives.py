# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Fit how NCCL's collectives inside one NVLink domain take longer than their bytes.

    t = start + (n - 1) * hop + x / (share(n) * rate) + ramp * x / (x + ramp_bytes)

where x are the bytes that a rank moves ((n-1)/n of the buffer; of an all-reduce twice that, over the gain
of its switch) and ``rate`` is what the node's profile states. Small messages take start and hops, in NCCL's
protocols for low latency; large ones the ramp as well, which the protocol for bandwidth takes to begin. The
constants are one set for all hardware, with the least Huber loss of the times' logarithms. Printed are
median errors, of all rows and of each device by constants that never saw it.

Usage: python scripts/fit_collectives.py collectives.csv
The table's columns: hardware, nodes, gpus, collective, bytes (whole buffer), latency_us.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parastrat.calibration.fitting import least
from parastrat.hardware import Link
from parastrat.profiles import load_hardware
from parastrat.units import MEGA, MICRO

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "collectives" / "nccl.toml"
SOURCE = "nccl-tests in ai-dynamo/aiconfigurator systems/data @095f58a, Apache-2.0"
NODES = {
    "NVIDIA A100-SXM4-80GB": "dgx-a100",
    "NVIDIA H100 80GB HBM3": "dgx-h100",
    "h100_sxm": "dgx-h100",
    "NVIDIA H200": "dgx-h200",
    "h200_sxm": "dgx-h200",
    "NVIDIA B200": "dgx-b200",
    "NVIDIA B300 SXM6 AC": "dgx-b300",
    "NVIDIA GB200": "gb200-nvl72",
    "NVIDIA GB300": "gb300-nvl72",
}
KINDS = {
    "gather": ("all_gather", "reduce_scatter"),
    "reduce": ("all_reduce",),
    "exchange": ("alltoall",),
}
NAMES = ("start_us", "hop_us", "ramp_us", "ramp_mb", "share_of_two", "share_of_four", "share_of_eight")
BEGIN = (8.0, 1.0, 20.0, 1.0, 0.7, 0.85, 1.0)
#: of so many rows one is fitted to: sizes are powers of two on few devices
EVERY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement."""

    node: str
    ranks: int
    #: that a rank moves
    bytes: float
    seconds: float
    rate: float


def read_rows(path: Path, kind: str) -> list[Row]:
    """Return the measurements of one kind inside one node whose links a profile describes."""
    links: dict[str, Link] = {}
    for node in set(NODES.values()):
        link = load_hardware(f"{node}:1").scale_up
        if link is not None:
            links[node] = link
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            node = NODES.get(line["hardware"])
            if node is None or line["nodes"] != "1" or line["collective"] not in KINDS[kind]:
                continue
            ranks = int(line["gpus"])
            moved = float(line["bytes"]) * (ranks - 1) / ranks
            if kind == "reduce":
                moved *= 2 / links[node].all_reduce_gain
            seconds, rate = float(line["latency_us"]) * MICRO, links[node].bytes_per_s
            found.append(Row(node=node, ranks=ranks, bytes=moved, seconds=seconds, rate=rate))
    return found


def error(constants: Sequence[float], row: Row) -> float:
    """Return the logarithm of predicted over measured seconds."""
    start, hop, ramp, ramp_mb, *shares = constants
    share = shares[int(math.log2(row.ranks)) - 1]
    seconds = (start + (row.ranks - 1) * hop + ramp * row.bytes / (row.bytes + ramp_mb * MEGA)) * MICRO
    return math.log((seconds + row.bytes / (share * row.rate)) / row.seconds)


def fitted(rows: Sequence[Row]) -> list[float]:
    """Return the constants of the least loss."""

    def errors(logs: Sequence[float]) -> list[float]:
        constants = [math.exp(log) for log in logs]
        return [error(constants, row) for row in rows]

    logs, _ = least(errors, [math.log(value) for value in BEGIN])
    return [math.exp(log) for log in logs]


def median_error(constants: Sequence[float], rows: Sequence[Row]) -> float:
    """Return the median error of the times, as a share of what was measured."""
    return statistics.median(abs(math.expm1(error(constants, row))) for row in rows)


def main() -> None:
    """Fit, print, and write the profile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("table", type=Path)
    given = parser.parse_args()
    lines = [
        "# Written by scripts/fit_collectives.py; not by hand.",
        f'source = "{SOURCE}; fitted by scripts/fit_collectives.py"',
    ]
    for kind in KINDS:
        rows = read_rows(given.table, kind)
        constants = fitted(rows[::EVERY])
        inside = median_error(constants, rows)
        left_out = []
        for node in sorted({row.node for row in rows}):
            others = [row for row in rows if row.node != node]
            left_out.append(median_error(fitted(others[:: 3 * EVERY]), [r for r in rows if r.node == node]))
        worst = max(left_out)
        print(
            f"{kind}: {len(rows)} rows, median error {100 * inside:.1f} %; a device left out: "
            f"{100 * statistics.median(left_out):.1f} % (median), {100 * worst:.1f} % (worst)"
        )
        lines += ["", f"[{kind}]", f"rows = {len(rows)}", "# median error of the time, a device left out"]
        lines.append(f"error_percent = {100 * statistics.median(left_out):.1f}")
        lines += [f"{name} = {value:.4g}" for name, value in zip(NAMES, constants, strict=True)]
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
