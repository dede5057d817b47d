"""How many golden decisions hang on a hardware figure: each moved by its uncertainty, up and down.

Usage: python benchmarks/sensitivity.py

A figure moves by the factor that ``profiles/uncertainty.toml`` states, with its reason, for its kind:
measured, derived or assumed. Usable memory, which torch itself reports, has a factor of its own.
"""

from __future__ import annotations

import runpy
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from parastrat.hardware import FigureKind, Hardware, Link, Provenance, Rates, kind_of
from parastrat.profiles import profiles_root
from parastrat.search import find_plan

DECISIONS = runpy.run_path(str(Path(__file__).with_name("decisions.py")))
STATED = tomllib.loads((profiles_root() / "uncertainty.toml").read_text(encoding="utf-8"))
FACTOR = {kind: STATED["kinds"][kind.value]["factor"] for kind in FigureKind}
_MEMORY = STATED["fields"]["usable_memory_bytes"]["factor"]
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
    """Return by what a figure is uncertain."""
    return FACTOR[kind_of(provenance, field)]


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
