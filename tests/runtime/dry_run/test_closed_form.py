"""The closed form of memory beside dry runs: a few of the combinations of ``benchmarks/dry_runs.py``."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.always]

ROOT = Path(__file__).resolve().parents[3]
BENCHMARKS = ROOT / "benchmarks"
#: of the combinations that are drawn, so many are run here: those that took the least time
TENTH = 34
MOST = 0.08


@pytest.fixture(scope="module")
def benchmark_module() -> Any:
    sys.path.append(str(BENCHMARKS))
    try:
        yield runpy.run_path(str(BENCHMARKS / "dry_runs.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))


def pinned() -> str:
    """The release of torch that the committed dry runs are of."""
    lines = (ROOT / "scripts" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torchs,) = (line for line in lines if line.startswith("torch=="))
    return torchs.removeprefix("torch==")


def cheapest() -> list[str]:
    """The combinations of the least seconds, by their keys."""
    text = (BENCHMARKS / "data" / "dry_runs.jsonl").read_text(encoding="utf-8")
    ran = [line for line in map(json.loads, text.splitlines()) if line["peak"] is not None]
    ran.sort(key=lambda line: (line["seconds"], line["key"]))
    return [line["key"] for line in ran[:TENTH]]


@pytest.mark.parametrize("key", cheapest())
def test_a_tenth_of_the_combinations_is_within_eight_percent(benchmark_module: Any, key: str) -> None:
    (each,) = (one for one in benchmark_module["combinations"]() if one.key == key)
    found = benchmark_module["compared"](each)
    assert found.dry_run is not None, found
    assert abs(found.error) <= MOST, found
    kept = benchmark_module["read_state"]()[key]["peak"]
    # other releases of torch gather a little more
    exact = torch.__version__.startswith(pinned())
    assert found.dry_run == pytest.approx(kept, rel=0 if exact else 0.01), (
        "run benchmarks/dry_runs.py again"
    )


def test_the_page_is_what_the_closed_form_makes_of_these_dry_runs(benchmark_module: Any) -> None:
    drawn, lines = benchmark_module["combinations"](), benchmark_module["read_state"]()
    known = [each for each in drawn if each.key in lines]
    found = [benchmark_module["compared"](each, lines[each.key]) for each in known]
    page = runpy.run_path(str(BENCHMARKS / "dry_runs_page.py"))
    assert page["PAGE"].read_text(encoding="utf-8") == page["page"](found, len(drawn)), (
        "python benchmarks/dry_runs.py --write --until 00:00"
    )
