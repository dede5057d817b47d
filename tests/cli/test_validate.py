"""``parastrat validate`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parastrat.cli.main import main

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
    assert "  1 groups of runs that no column tells apart differ by 2.9 % (median)" in out
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
