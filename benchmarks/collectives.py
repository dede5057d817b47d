"""Collectives between nodes, predicted beside every published measurement.

Usage: python benchmarks/collectives.py

nccl-tests' times of whole collectives on otherwise idle machines
(benchmarks/data/collectives_between_nodes.csv) beside those of the cost model by the nodes' profiles, with
nothing taken off for a training step. Rows of which a profile's own network figure was made are marked:
they are no test.
"""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from parastrat.cost.communication import Group, all_reduce_s, fabric_between, ring_s
from parastrat.profiles import load_hardware
from parastrat.units import MICRO

MEASURED = Path(__file__).parent / "data" / "collectives_between_nodes.csv"
#: (profile, bytes) of the rows of which its rate or its latency between nodes was made, as it says itself
MADE_OF = {
    ("p4de.24xlarge", 2**31),
    ("p4de.24xlarge", 2**10),
    ("p5.48xlarge", 2**10),
}
#: sizes in bytes below which latency decides, and from which bandwidth does
SMALL, LARGE = 2**20, 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measurement with its prediction."""

    id: str
    on: str
    nodes: int
    ranks: int
    collective: str
    bytes: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def was_used(self) -> bool:
        """Whether the profile's own figure was made of it."""
        return (self.on, self.bytes) in MADE_OF


def predicted(on: str, nodes: int, ranks: int, collective: str, size: int) -> float:
    """Return the seconds of a collective on idle machines."""
    hardware = load_hardware(f"{on}:{nodes}")
    group = Group(ranks=ranks, stride=hardware.devices_per_node * nodes // ranks)
    of_kind = {"all_reduce": all_reduce_s, "all_gather": ring_s}
    return float(of_kind[collective](size, group, fabric_between(hardware)))


def compared() -> tuple[list[Compared], Counter[str]]:
    """Return every measurement that can be predicted, and why the others cannot."""
    found, left_out = [], Counter[str]()
    with MEASURED.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["bytes"] or not row["latency_us"]:
                left_out["the size of its messages is not stated"] += 1
                continue
            if not row["profile"]:
                left_out["the rate of its network is not stated"] += 1
                continue
            nodes, ranks, size = int(row["nodes"]), int(row["gpus"]), int(row["bytes"])
            found.append(
                Compared(
                    id=row["id"],
                    on=row["profile"],
                    nodes=nodes,
                    ranks=ranks,
                    collective=row["collective"],
                    bytes=size,
                    measured_s=float(row["latency_us"]) * MICRO,
                    predicted_s=predicted(row["profile"], nodes, ranks, row["collective"], size),
                )
            )
    return found, left_out


def summary(name: str, rows: list[Compared]) -> str:
    """Return the median and the largest error of some rows, in a line."""
    errors = [abs(row.error) for row in rows]
    if not errors:
        return f"{name}: none"
    bias = statistics.median(row.error for row in rows)
    return (
        f"{name}: {len(rows)} rows, median error {100 * statistics.median(errors):.1f} %, "
        f"worst {100 * max(errors):.1f} %, bias {100 * bias:+.1f} %"
    )


def main() -> None:
    """Print every row, then the errors by size and by node."""
    rows, left_out = compared()
    print(
        f"{'row':11} {'profile':15} nodes ranks {'collective':10} {'bytes':>13}  measured  predicted  error"
    )
    for row in rows:
        print(
            f"{row.id:11} {row.on:15} {row.nodes:5} {row.ranks:5} {row.collective:10} "
            f"{row.bytes:13,} {row.measured_s / MICRO:9,.0f} {row.predicted_s / MICRO:10,.0f} "
            f"{100 * row.error:+6.1f} %{'  its profile was made of it' if row.was_used else ''}"
        )
    print("microseconds\n")
    told = [row for row in rows if not row.was_used]
    print(summary("all but those", told))
    print(summary(f"below {SMALL:,} bytes", [row for row in told if row.bytes < SMALL]))
    print(summary("between", [row for row in told if SMALL <= row.bytes < LARGE]))
    print(summary(f"from {LARGE:,} bytes", [row for row in told if row.bytes >= LARGE]))
    for on in sorted({row.on for row in rows}):
        print(summary(on, [row for row in told if row.on == on]))
    for reason, count in left_out.items():
        print(f"left out: {count}, {reason}")


if __name__ == "__main__":
    main()
