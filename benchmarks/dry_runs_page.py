"""docs/dry_runs.md: how many dry runs were compared with the closed form, and where that is off and why."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from parastrat.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dry_run_combinations import Combination
    from dry_run_peaks import Compared

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "dry_runs.md"
EXPLAINED = ROOT / "benchmarks" / "data" / "dry_runs.toml"
#: an error that is told
NEAR, FAR = 0.03, 0.08

_HEAD = """# The closed form of memory beside dry runs

Made by `python benchmarks/dry_runs.py --write`. A dry run wraps the model as `auto_parallelize` does, one
rank among others that are not there, and counts the bytes of a step's tensors, which are fake. Compared is
the most that lives, on the pipeline rank with most, with the most that the estimate has at any moment less
its overhead (context, communicators, allocator). Devices may be fullest at another: what an allocator keeps
for gathered parameters is idle at some moments only. Models are cut to four blocks, so that what does not
grow with their depth weighs most. No estimate reads what a dry run found.
"""


def page(found: Sequence[Compared[Combination]], drawn: int) -> str:
    """Return docs/dry_runs.md.

    Args:
        found: the combinations that were tried.
        drawn: how many there are.
    """
    ran = [each for each in found if each.dry_run is not None]
    refused = Counter(_reason(each.refused) for each in found if each.dry_run is None)
    near, far = (sum(abs(each.error) <= most for each in ran) for most in (NEAR, FAR))
    worst = max(ran, key=lambda each: abs(each.error))
    lines = [
        _HEAD,
        f"- Drawn: {drawn}. Tried: {len(found)}; {len(ran)} ran, {sum(refused.values())} are refused.",
        f"- Within 3 %: {near} ({near / len(ran):.1%}). Within 8 %: {far} ({far / len(ran):.1%}).",
        f"- Worst: {100 * worst.error:+.1f} %.",
        "",
        *_ways(ran),
        "",
        *_outliers(ran),
        "",
        "Refused:",
        "",
        *(f"- {count}: {reason}" for reason, count in sorted(refused.items())),
    ]
    return "\n".join(lines) + "\n"


def _ways(ran: Sequence[Compared[Combination]]) -> list[str]:
    lines = ["| way | ran | within 3 % | within 8 % | worst |", "|---|---:|---:|---:|---:|"]
    for way in dict.fromkeys(sorted(each.of.way for each in ran)):
        own = [each.error for each in ran if each.of.way == way]
        near, far = (sum(abs(error) <= most for error in own) for most in (NEAR, FAR))
        lines.append(f"| {way} | {len(own)} | {near} | {far} | {100 * max(own, key=abs):+.1f} % |")
    return lines


def _outliers(ran: Sequence[Compared[Combination]]) -> list[str]:
    explained: dict[str, str] = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    off = sorted((each for each in ran if abs(each.error) > NEAR), key=lambda each: -abs(each.error))
    return [
        "| off by more than 3 % | dry run GiB | error | why |",
        "|---|---:|---:|---|",
        *(
            f"| {each.of.key} | {each.dry_run / GIB:.2f} | {100 * each.error:+.1f} % | "
            f"{explained.get(each.of.key, 'unexplained')} |"
            for each in off
        ),
    ]


def _reason(refused: str) -> str:
    """Return what several refusals have in common."""
    if refused.startswith("PS"):
        return (
            f"{refused.split(',', maxsplit=1)[0]}: a rule refuses such plans, heads do not divide over tp"
        )
    return re.sub(r"^(FSDP|Replicate)(?=[A-Z])", "", refused)
