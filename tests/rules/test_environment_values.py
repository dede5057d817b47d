"""Variables whose values nobody knows."""

from __future__ import annotations

import pytest
from builders import codes


@pytest.mark.parametrize(
    ("level", "is_none"),
    [("WARNING", True), ("1", True), ("warn", False), ("TRACE", False), ("", False), ("$LEVEL", False)],
)
def test_nccl_log_has_a_level(level: str, is_none: bool) -> None:
    assert ("PS524" in codes(env={"NCCL_DEBUG": level})) is is_none
    assert "PS524" not in codes(env={"NCCL_DEBUG_FILE": level})


@pytest.mark.parametrize(
    ("level", "is_none"),
    [("1", True), ("DEBUG", True), ("detail", False), ("OFF", False), ("", False), ("$LEVEL", False)],
)
def test_torchs_checks_have_a_level(level: str, is_none: bool) -> None:
    assert ("PS525" in codes(env={"TORCH_DISTRIBUTED_DEBUG": level})) is is_none
