"""``parastrat validate`` as a command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parastrat.cli.main import main
from parastrat.profiles import load_stack

HEADER = (
    "id,model,gpus,stack,hardware,precision,fsdp,act_ckpt,micro_batch,global_batch,seq_len,status,"
    "step_time_s,peak_mem_gib,mem_metric\n"
)
RUNS = HEADER + (
    "one-1,llama-3-8b,8,torch,dgx-h100,bf16,zero3,full,2,32,8192,ok,3.5,60,torch max_memory_reserved\n"
    "one-2,llama-3-8b,8,torch,dgx-h100,bf16,zero3,full,2,32,8192,ok,3.6,61,torch max_memory_reserved\n"
    "one-3,llama-3-8b,8,torch,dgx-h100,bf16,zero3,none,64,512,8192,OOM,,,torch max_memory_reserved\n"
    "one-4,llama-3-8b,8,jax,dgx-h100,bf16,zero3,full,2,32,8192,ok,3.6,,\n"
)


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "cases.csv"
    path.write_text(RUNS, encoding="utf-8")
    return path


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["validate", *arguments])
    return int(left.value.code or 0)


def test_errors_verdicts_and_reasons_are_shown(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(str(cases)) == 0
    out = capsys.readouterr().out
    assert "Step time, error in %\n" in out
    assert "Peak memory, error in %\n" in out
    spread = "runs that no column tells apart differ by 2.9 % among themselves (median of 1 group)"
    assert spread in " ".join(out.split())
    assert "  2 ran: 2 fits\n" in out
    assert "  1 ran out of memory: 1 does_not_fit\n" in out
    assert "3 runs predicted, 1 not\n" in out
    assert "    1  unknown stack 'jax'\n" in out


def test_json_has_every_run_once_and_its_quantities(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(str(cases), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "parastrat.validation/1"
    assert [(row["id"], row["quantity"]) for row in found["rows"]] == [
        (name, quantity)
        for name in ("one-1", "one-2", "one-3")
        for quantity in ("step_time_s", "peak_memory_bytes")
    ]
    first, last = found["rows"][0], found["rows"][-1]
    assert first["error"] == pytest.approx(first["predicted"] / 3.5 - 1)
    assert (last["measured"], last["error"], last["out_of_memory"]) == (None, None, True)
    assert found["skipped"] == [{"id": "one-4", "reason": "unknown stack 'jax'"}]
    assert found["summary"].keys() == {"step_time_s", "peak_memory_bytes"}
    assert {"n", "mape", "median", "p90", "bias", "median_log"} <= found["summary"]["step_time_s"].keys()
    assert found["summary"]["step_time_s"]["noise"] == {
        "groups": 1,
        "median_spread": pytest.approx(3.6 / 3.5 - 1),
    }


def test_a_file_that_cannot_be_read_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(str(tmp_path / "absent.csv")) == 2
    assert "cannot read" in capsys.readouterr().err


def test_names_that_were_meant_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.csv"
    changes = ("torch,", "torhc,"), ("dgx-h100", "dgxh100"), ("lla", "la")
    bad = [line.replace(*change) for line, change in zip(RUNS.splitlines()[1:], changes, strict=False)]
    path.write_text(HEADER + "\n".join(bad), encoding="utf-8")
    # and nothing is predicted
    assert ended(str(path)) == 1
    told = " ".join(capsys.readouterr().out.split())
    for reason in (
        "unknown stack 'torhc'; did you mean torch",
        "unknown hardware 'dgxh100'; did you mean dgx-h100",
        "lama-3-8b is no preset, and layers, hidden, vocab are not stated; did you mean llama-3-8b?",
    ):
        assert reason in told


def test_a_stack_is_corrected_and_used(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    cases.write_text(RUNS.replace("jax", "torch").replace(",3.5,", ",5.5,").replace(",3.6,", ",5.6,"))
    assert ended(str(cases), "-o", str(mine)) == 0
    out = capsys.readouterr().out
    assert "Stack torch, corrected by these runs\n" in out
    assert re.search(r"median error of 3 runs: \d+\.\d % before, \d+\.\d % after", out)
    stack = load_stack(str(mine))
    assert stack.matmul_factor < 1
    job, plan = ["recommend", "llama-3-8b", "--on", "dgx-h100", "--json"], tmp_path / "plan.toml"
    with pytest.raises(SystemExit) as left:
        main([*job, "--stack", str(mine), "-o", str(plan)])
    assert left.value.code == 0
    slower = json.loads(capsys.readouterr().out)["estimate"]["time"]["step"]
    with pytest.raises(SystemExit):
        main(job)
    assert slower > json.loads(capsys.readouterr().out)["estimate"]["time"]["step"]
    # the plan file names the stack by its path, and so it is found again
    with pytest.raises(SystemExit) as left:
        main(["explain", str(plan), "--json"])
    assert left.value.code == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["time"]["step"] == pytest.approx(slower)


def test_json_has_the_correction(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases.write_text(RUNS.replace("jax", "torch"))
    assert ended(str(cases), "-o", str(tmp_path / "mine.toml"), "--json") == 0
    found = json.loads(capsys.readouterr().out)["correction"]
    assert (found["stack"], found["runs"]) == ("torch", 3)
    assert {constant["name"] for constant in found["constants"]} >= {"matmul_factor", "overlap"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUNS.replace("jax", "fsdp1"), "cases.csv has runs of 2 stacks: fsdp1, torch"),
        (HEADER, "no run can be predicted and says how long it took"),
    ],
)
def test_what_cannot_be_corrected_is_refused(
    cases: Path, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cases.write_text(text)
    mine = tmp_path / "mine.toml"
    assert ended(str(cases), "-o", str(mine)) == 2
    assert message in capsys.readouterr().err
    assert not mine.exists()


def test_no_other_file_is_replaced(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(str(cases), "-o", str(cases)) == 2
    assert "is there and is no stack file" in capsys.readouterr().err
    assert cases.read_text() == RUNS


def test_one_run_is_one(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    titles, first, *_ = cases.read_text(encoding="utf-8").splitlines()
    cases.write_text(f"{titles}\n{first}\n", encoding="utf-8")
    assert ended(str(cases)) == 0
    assert "1 run predicted, 0 not\n" in capsys.readouterr().out
