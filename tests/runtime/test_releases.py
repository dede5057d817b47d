"""Releases of torch that nobody has tried."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import parastrat
from parastrat.runtime.releases import NEWEST

ROOT = Path(__file__).resolve().parents[2]


def _wrapped() -> None:
    parastrat.auto_parallelize(nn.Linear(2, 2), sample_inputs=torch.zeros(2, 2))


def test_a_later_release_than_any_that_was_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    later = f"{NEWEST[0]}.{NEWEST[1] + 1}.0a0+cu140"
    monkeypatch.setattr(torch, "__version__", later)
    with pytest.warns(UserWarning, match=rf"tried with torch up to 2\.15, and this is {later[:4]}"):
        _wrapped()


def test_a_release_that_was_tried_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", f"{NEWEST[0]}.{NEWEST[1]}.3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _wrapped()


def test_the_readme_tells_the_same_releases() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (first,) = (each.partition(">=")[2] for each in project["dependencies"] if each.startswith("torch>="))
    told = f"torch ({first} to {'.'.join(map(str, NEWEST))})"
    assert told in (ROOT / "README.md").read_text(encoding="utf-8")
