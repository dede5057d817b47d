"""docs/accuracy.md against the constants as they are: no figure may worsen unnoticed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from parastrat.comparison import Quantity

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
#: points by which a figure may differ from the page
NEAR = 0.2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))


@pytest.fixture(scope="module")
def found(benchmark: dict[str, Any]) -> Any:
    return benchmark["comparisons"]()


@pytest.mark.parametrize("quantity", Quantity)
def test_no_figure_is_worse_than_on_the_page(quantity: Quantity, found: Any, benchmark: Any) -> None:
    section = PAGE.split(f"## {benchmark['_TITLES'][quantity]}\n")[1].split("\n## ")[0]
    line = re.search(
        r"^\| \*\*all\*\* \|  \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) %", section, re.MULTILINE
    )
    assert line is not None
    told = [float(figure) for figure in line.groups()]
    summary = found[quantity].summaries[quantity]
    assert summary.n >= told[0]
    now = [100 * share for share in (summary.median, summary.mape, summary.p90)]
    worse = [
        (figure, before) for figure, before in zip(now, told[1:], strict=True) if figure > before + NEAR
    ]
    assert not worse, f"now and on the page: {worse}; run benchmarks/accuracy.py --write if it has to be"


def test_no_more_verdicts_are_wrong_than_on_the_page(found: Any) -> None:
    wrong = {row.id for row in found[Quantity.PEAK_MEMORY].rows if row.is_misjudged}
    told = set(re.findall(r"[a-z]+-\d+", " ".join(re.findall(r"; wrong: (.*)\.$", PAGE, re.MULTILINE))))
    assert wrong <= told


def test_the_worst_rows_of_memory_are_explained() -> None:
    memory = PAGE.split("## Peak memory\n")[1].split("\n## ")[0]
    assert "not explained yet" not in memory
