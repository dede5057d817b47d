from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from cli.conftest import Typed
from snapshots import block, segment, trained, write

JOB = ("gpt2", "--on", "dgx-h100:1", "--strategy", "ddp")


@pytest.fixture
def plan(tmp_path: Path, typed: Typed) -> Path:
    path = tmp_path / "plan.toml"
    assert typed("estimate", *JOB, "-o", path).code == 0
    return path


def test_a_snapshot_is_held_against_a_plan(tmp_path: Path, typed: Typed, plan: Path) -> None:
    path = write(tmp_path / "s.pickle", *trained())
    done = typed("diff", path, plan, "--json")
    assert done.code == 0
    table = done.answer
    assert (table["schema"], table["device"], table["at_peak"]) == ("parastrat.diff/1", 0, True)
    assert table["plan"]["strategy"] == "ddp"
    lines = {line["name"]: line for line in table["lines"]}
    assert lines["activations"]["measured"] == 4 * 2**20
    estimate = typed("estimate", *JOB, "--json").answer["estimate"]["memory"]
    assert lines["activations"]["estimated"] == estimate["activations"]
    assert table["error"] == pytest.approx(lines["reserved"]["estimated"] / (64 * 2**20) - 1)


def test_the_text_has_the_lines_and_what_they_cannot_tell(tmp_path: Path, typed: Typed, plan: Path) -> None:
    segments, traces = trained()
    text = typed("diff", write(tmp_path / "s.pickle", segments, traces), plan).out
    assert text.startswith("Device 0 of the snapshot, at the peak of its 7 events, beside DDP")
    assert "gradients and transient together" in text
    assert "no history" not in text
    assert "the estimate of what is reserved is +" in text
    bare = typed("diff", write(tmp_path / "s.pickle", segments, []), plan).out
    assert "% off" not in bare
    assert typed("diff", tmp_path / "s.pickle", plan, "--json").answer["error"] is None
    assert "the snapshot has no history, so that its peak is unknown" in bare
    unknown = write(tmp_path / "s.pickle", [segment([block(0, 2**30)])], [])
    assert "no stack tells what 1.0 GiB are, 100 %" in typed("diff", unknown, plan).out


def test_one_device_is_named_where_there_are_several(tmp_path: Path, typed: Typed, plan: Path) -> None:
    both = [segment([block(0, 512)], device=device) for device in (0, 3)]
    path = write(tmp_path / "s.pickle", both, [])
    several = typed("diff", path, plan)
    assert (several.code, several.err) == (
        2,
        "error: the snapshot shows several devices\nhint: name one with --device: 0, 3\n",
    )
    assert typed("diff", path, plan, "--device", 3, "--json").answer["device"] == 3
    assert typed("diff", path, plan, "--device", 1).code == 2


class _Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("made",)


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, typed: Typed, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(_Harmful()))
    done = typed("diff", path, plan)
    assert done.code == 2
    assert "it asks for posix.mkdir, which could run code" in done.err
    assert not (tmp_path / "made").exists()
