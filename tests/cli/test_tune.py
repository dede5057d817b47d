"""``parastrat tune``: small scripts on two processes, and what becomes of trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Typed
from drawn import drawn

from parastrat.cli import tune
from parastrat.parse import read_plan

SCRIPT = """\
import os
import sys
import torch
from torch import nn
import parastrat

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(32, 64)
        self.two = nn.Linear(64, 32)
    def forward(self, x):
        return self.two(self.one(x).relu())

def build():
    return Net()

def main():
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share = int(sys.argv[2])
    for step in range(int(sys.argv[3])):
        x = torch.randn(share, 32)
        if sys.argv[1] == "plain":
            model(x).square().mean().backward()
        else:
            parastrat.forward_backward(model, x, x, loss_fn=nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()
    print("the whole script")

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def folders_of_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "fit.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def plan(typed: Typed, script: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    words = ("--on", "cpu:1", "--ranks-per-node", "2", "--strategy", "ddp", "--global-batch", "8")
    assert typed("estimate", f"{script}:build", *words, "-o", path).code == 0
    return path


@pytest.mark.slow
def test_the_fastest_of_what_ran_is_kept(typed: Typed, plan: Path, script: Path) -> None:
    words = ("--others", "1", "--steps", "4", "--warm-up", "1", "--json")
    done = typed("tune", *words, plan, script, "forward_backward", "4", "1000")
    assert done.code == 0, done.err
    answer = done.answer
    trials = answer["trials"]
    assert len(trials) == 2
    for trial in trials:
        assert trial["failure"] is None
        assert trial["measured_s"] > 0
        assert len(trial["seconds"]) in (4, 8)
        assert trial["plan"]["micro_batch_size"] * trial["plan"]["gradient_accumulation_steps"] == 4
    assert len({json.dumps(trial["plan"]) for trial in trials}) == 2
    kept = trials[answer["kept"]]
    assert (answer["kept_in"] is None) == (answer["kept"] == 0)
    if answer["kept_in"] is not None:
        # both ran twice
        assert len(trials[0]["seconds"]) == len(kept["seconds"]) == 8
        stored = read_plan(Path(answer["kept_in"])).plan
        assert stored is not None
        assert stored.strategy == kept["plan"]["strategy"]
        assert stored.micro_batch_size == kept["plan"]["micro_batch_size"]
    assert "trial 0, the given plan: DDP (dp_replicate 2), batch 8" in done.err
    # each ended with its last step
    assert "the whole script" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    drawn(
        [
            (
                ("plain", "3", "1000"),
                "a step trains 6 samples, the plan's global batch is 8",
                "--global-batch 6",
            ),
            (("plain", "4", "2"), "the script ended before 6 optimizer steps", "trial0.log"),
            (("plain", "4", "none"), "ValueError: invalid literal for int()", "trial0.log"),
        ],
        1,
    ),
)
def test_a_script_that_does_not_follow_its_plan(
    typed: Typed, plan: Path, script: Path, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    done = typed("tune", "--steps", "4", "--warm-up", "1", plan, script, *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert hint in done.err


def found(seconds: float, samples: int = 8, loop: str = "plain") -> dict[str, Any]:
    return {"seconds": [seconds] * 4, "samples": [samples] * 2, "loop": loop, "peak_bytes": None}


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, str, dict[str, Any] | None]]:
    """What trials end with, one after the other: exit code, output, and what was found."""
    queue: list[tuple[int | None, str, dict[str, Any] | None]] = []

    def ended(_script: object, _plan: Path, path: Path, log: Path) -> int | None:
        code, words, what = queue.pop(0)
        log.write_text(words, encoding="utf-8")
        if what is not None:
            path.write_text(json.dumps(what), encoding="utf-8")
        return code

    monkeypatch.setattr(tune, "_ended", ended)
    return queue


@pytest.mark.parametrize(("loop", "accumulates"), [("plain", False), ("forward_backward", True)])
def test_a_plain_loop_is_not_given_what_it_cannot_run(
    typed: Typed, plan: Path, script: Path, outcomes: list[Any], *, loop: str, accumulates: bool
) -> None:
    outcomes += [(0, "", found(1.0, loop=loop))] * 20
    done = typed("tune", "--others", "10", "--json", plan, script)
    steps = [trial["plan"]["gradient_accumulation_steps"] for trial in done.answer["trials"]]
    assert len(steps) > 2
    assert (max(steps) > 1) is accumulates


def test_others_that_fail_are_told(
    typed: Typed, plan: Path, script: Path, outcomes: list[Any], tmp_path: Path
) -> None:
    outcomes += [
        (0, "", found(2.0, loop="forward_backward")),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried\nerror: rank 0 failed", None),
        (None, "", None),
        (1, "error: rank 1 of 2 failed: no such file\nhint: x", None),
        (0, "", found(1.0, loop="forward_backward")),
        (0, "", found(2.2, loop="forward_backward")),
        (0, "", found(1.2, loop="forward_backward")),
    ]
    done = typed("tune", "--others", "4", "--limit", "9", plan, script, "-o", tmp_path / "x", "y")
    assert (done.code, outcomes) == (0, [])
    text = " ".join(done.out.split())
    assert "91 % faster than the plan that was given" in text
    for words in ("given; recompute none", "ran out of memory", "took longer than 9 s", "no such file"):
        assert words in text
    assert "what the trials printed is in" in done.err


def test_a_plan_that_runs_out_of_memory_is_replaced(
    typed: Typed, plan: Path, script: Path, outcomes: list[Any]
) -> None:
    outcomes += [(1, "RuntimeError: ... DefaultCPUAllocator: can't allocate memory", None)]
    outcomes += [(0, "", found(1.0))]
    done = typed("tune", "--others", "1", plan, script)
    assert done.code == 0, done.err
    assert "the plan that was given does not run" in " ".join(done.out.split())
    assert plan.with_name("plan.tuned.toml").exists()


def test_nothing_runs(typed: Typed, plan: Path, script: Path, outcomes: list[Any]) -> None:
    outcomes += [(1, "out of memory", None)] * 2
    done = typed("tune", "--others", "1", plan, script)
    assert done.code == 1
    assert "No plan ran: nothing is kept." in done.out
    assert not plan.with_name("plan.tuned.toml").exists()


def test_the_given_plan_is_kept_and_nothing_written(
    typed: Typed, plan: Path, script: Path, outcomes: list[Any], tmp_path: Path
) -> None:
    outcomes += [(0, "", found(1.0)), (0, "", found(1.5))] * 2
    done = typed("tune", "--others", "1", plan, script)
    assert done.code == 0
    assert "Keep the plan that was given, DDP (dp_replicate 2): of 1 other none is faster" in " ".join(
        done.out.split()
    )
    assert not plan.with_name("plan.tuned.toml").exists()
    done = typed("tune", "--others", "1", "-o", tmp_path / "kept.toml", plan, script)
    assert done.code == 0
    kept, given = read_plan(tmp_path / "kept.toml").plan, read_plan(plan).plan
    assert kept == given


def test_a_file_that_is_no_plan_is_not_replaced(
    typed: Typed, plan: Path, script: Path, outcomes: list[Any]
) -> None:
    """It is told before anything runs: there is no outcome to have."""
    done = typed("tune", "-o", script, plan, script)
    assert (done.code, outcomes) == (2, [])
    assert "plan file" in done.err
    assert script.read_text() == SCRIPT


@pytest.mark.parametrize("limit", ["nan", "inf", "0"])
def test_a_limit_is_a_number_of_seconds(typed: Typed, plan: Path, script: Path, limit: str) -> None:
    done = typed("tune", "--limit", limit, plan, script)
    assert (done.code, done.out) == (2, "")
    assert "--limit" in done.err


def test_several_nodes_are_refused(typed: Typed, script: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "gpt2", "--on", "dgx-a100:2", "-o", path).code == 0
    done = typed("tune", path, script)
    assert done.code == 2
    assert "the plan is for 2 nodes, and tune runs on one" in done.err


def started_with(word: str) -> list[int]:
    """Return the processes that have a word among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def ranks_of(processes: list[int]) -> set[int]:
    """Return the ranks among processes, by their environment.

    A process that is about to become another one has the arguments of the one that started it already.
    """
    found = set()
    for process in processes:
        with suppress(OSError):
            for entry in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"RANK="):
                    found.add(int(entry.removeprefix(b"RANK=")))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found by /proc")
def test_what_runs_ends_with_tune(plan: Path, script: Path) -> None:
    """A trial is not left behind when its command is asked to end."""
    words = [sys.executable, "-m", "parastrat", "tune", "--steps", "1000000", str(plan), str(script)]
    process = subprocess.Popen(
        [*words, "plain", "4", "100000000"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(script.parent)},
        stderr=subprocess.DEVNULL,
    )
    limit, ranks = time.monotonic() + 180, set[int]()
    while ranks != {0, 1} and time.monotonic() < limit:
        time.sleep(0.1)
        ranks = ranks_of(started_with(str(script)))
    assert ranks == {0, 1}
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert started_with(str(script)) == []
