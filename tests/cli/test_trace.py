"""``estimate --trace``."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Typed

JOB = ("gpt2", "--on", "dgx-a100:1")


def test_a_step_is_written_for_trace_viewers(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    done = typed("estimate", *JOB, "--pp", "2", "--trace", path, "--json")
    assert done.code == 0
    lanes = done.answer["timeline"]["lanes"]
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == list(lanes)
    # again over itself, but over nothing else
    assert typed("estimate", *JOB, "--trace", path).code == 0
    path.write_text("mine")
    done = typed("estimate", *JOB, "--trace", path)
    assert done.code != 0
    assert "is there and is no trace of a step" in done.err
    assert path.read_text() == "mine"


def test_what_cannot_run_has_no_step(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    done = typed("estimate", "gpt3-175b", "--on", "dgx-a100:1", "--trace", path)
    assert done.code != 0
    assert "there is no step to trace" in done.err
    assert not path.exists()
