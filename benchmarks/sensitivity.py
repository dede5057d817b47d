"""How many golden decisions hang on a hardware figure: each moved by its uncertainty, up and down.

Usage: python benchmarks/sensitivity.py

A figure moves by the factor of its kind: a measured one by 5 % (how far the fitted curves are from the
kernels that they leave out, see ``scripts/fit_matmul.py``), a derived one by 25 %, an assumed one by 2, as
wide as the step's interval takes it (``parastrat.cost.step``). Usable memory, which torch itself reports,
moves by 2 %.
"""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from parastrat.hardware import FigureKind, Hardware, Link, Provenance, Rates
from parastrat.search import find_plan

DECISIONS = runpy.run_path(str(Path(__file__).with_name("decisions.py")))
FACTOR = {FigureKind.MEASURED: 1.05, FigureKind.DERIVED: 1.25, FigureKind.ASSUMED: 2.0}
_MEMORY = 1.02
_OF_DEVICE = ("memory_bytes_per_s", "launch_s", "attention_efficiency")
_OF_LINK = ("bytes_per_s", "latency_s", "all_reduce_gain")


def moved(hardware: Hardware) -> Iterator[tuple[str, Hardware]]:
    """Yield the hardware with one figure moved at a time, and which."""
    device = hardware.device
    for sign, power in (("down", -1), ("up", 1)):
        memory = int(device.usable_memory_bytes * _MEMORY**power)
        changed = replace(device, usable_memory_bytes=min(memory, device.memory_bytes))
        yield f"usable memory {sign}", replace(hardware, device=changed)
        for name in _OF_DEVICE:
            factor = _factor(device.provenance, name) ** power
            changed = replace(device, **{name: getattr(device, name) * factor})
            yield f"device.{name} {sign}", replace(hardware, device=changed)
        factor = _factor(device.provenance, "sustained.bf16") ** power
        rates = {each.name: getattr(device.sustained, each.name) for each in fields(Rates)}
        faster = Rates(**{name: rate and rate * factor for name, rate in rates.items()})
        yield f"device.sustained {sign}", replace(hardware, device=replace(device, sustained=faster))
        for side in ("scale_up", "scale_out"):
            link: Link | None = getattr(hardware, side)
            for name in _OF_LINK if link is not None else ():
                assert link is not None
                value = getattr(link, name) * _factor(link.provenance, name) ** power
                if name == "all_reduce_gain":
                    value = max(1.0, value)
                yield f"{side}.{name} {sign}", replace(hardware, **{side: replace(link, **{name: value})})


def _factor(provenance: tuple[Provenance, ...], field: str) -> float:
    """Return by what a figure is uncertain; one that nobody gave a source for is assumed."""
    kinds = [entry.kind for entry in provenance if entry.field == field]
    return FACTOR[kinds[0] if kinds else FigureKind.ASSUMED]


def main() -> None:
    """Print the flips of each figure, and each decision that flips."""
    flips, tried, unsteady = Counter[str](), Counter[str](), {}
    entries = DECISIONS["decisions"]()
    for entry in entries:
        facts = DECISIONS["facts_of"](entry)
        chosen = find_plan(facts).chosen
        strategy = chosen.plan.strategy if chosen else "nothing fits"
        for figure, hardware in moved(facts.hardware):
            other = find_plan(replace(facts, hardware=hardware)).chosen
            tried[figure] += 1
            if (other.plan.strategy if other else "nothing fits") != strategy:
                flips[figure] += 1
                unsteady.setdefault(entry["id"], []).append(
                    f"{figure}: {other.plan.strategy if other else 'nothing fits'}"
                )
    moves = f"{flips.total()} of {tried.total()} moves flip a decision"
    print(f"{moves}; {len(unsteady)} of {len(entries)} decisions")
    for figure, count in flips.most_common():
        print(f"  {count:>3} of {tried[figure]}  {figure}")
    for name, changes in unsteady.items():
        print(f"{name}: {'; '.join(changes)}")


if __name__ == "__main__":
    main()
