from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from parastrat.emit.plan_file import plan_toml
from parastrat.errors import UnknownFactError
from parastrat.parse import FingerprintedModel, ModelFingerprint, read_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from parastrat.case import Case


def test_golden(case_of: Callable[..., Case], golden: Callable[[str, str], None]) -> None:
    golden("plan.toml", plan_toml(case_of(nodes=2)))


def test_stores_the_path_that_it_is_given(case_of: Callable[..., Case], tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_toml(case_of(), stored_ref="../model.py:build"))
    assert read_plan(path).model == ModelFingerprint(
        ref="../model.py:build", parameters=8_030_261_248, blocks=32, changing_buffers=False, routed=False
    )


def test_a_fingerprint_stands_in_for_an_unknown_model(case_of: Callable[..., Case]) -> None:
    fingerprint = ModelFingerprint(
        ref="llama-3.1-8b", parameters=8_030_261_248, blocks=32, changing_buffers=False, routed=False
    )
    model = FingerprintedModel(fingerprint)
    case = replace(case_of(), model=model)  # type: ignore[arg-type]
    assert plan_toml(case) == plan_toml(case_of())
    with pytest.raises(UnknownFactError, match=r"model\.heads"):
        _ = model.heads
