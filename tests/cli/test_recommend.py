"""``parastrat recommend`` with what is shown on request."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from parastrat.cli.main import main

JOB = ("recommend", "llama-3.1-8b", "--on", "dgx-h100")


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*JOB, *arguments])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_the_front_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Less memory, more time\n" in answered(capsys, "--front")
    assert "Less memory, more time" not in answered(capsys)


def test_the_front_falls_in_memory_and_rises_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    front = json.loads(answered(capsys, "--front", "--json"))["front"]
    points = [(one["estimate"]["memory"]["total"], one["estimate"]["time"]["step"]) for one in front]
    assert len(points) > 3
    assert all(one[0] > other[0] and one[1] < other[1] for one, other in pairwise(points))
    assert json.loads(answered(capsys, "--json"))["front"] == []
