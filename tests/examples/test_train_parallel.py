"""The example under tensor and pipeline parallelism: the losses of one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from runtime.ranks import script_on_ranks

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_parallel.py"
PLAN = """schema = "parastrat.plan/1"

[plan]
pp = {pp}
dp_replicate = 1
dp_shard = 1
cp = 1
tp = {tp}
ep = 1
shard = "none"
{more}
micro_batch_size = 4
gradient_accumulation_steps = 2
precision = "fp32"
backend = "gloo"
"""
PLANS = {
    "single": {"pp": 1, "tp": 1, "more": ""},
    "tp": {"pp": 1, "tp": 2, "more": "sequence_parallel = true"},
    "pp": {"pp": 2, "tp": 1, "more": 'pp_schedule = "1F1B"'},
}


def printed(kind: str, model: str, folder: Path) -> list[str]:
    fields = PLANS[kind]
    plan = folder / f"{kind}.toml"
    plan.write_text(PLAN.format(**fields))
    ranks = int(str(fields["pp"])) * int(str(fields["tp"]))
    arguments = ("--model", model, "--steps", "3", "--seq-len", "32")
    shown = script_on_ranks(ranks, SCRIPT, *arguments, PARASTRAT_PLAN=str(plan))
    return re.findall(r"loss (\d+\.\d{3})", shown)


@pytest.mark.slow
def test_losses_do_not_depend_on_the_plan(tmp_path: Path) -> None:
    alone = printed("single", "gpt", tmp_path)
    # two steps, and what was held out
    assert len(alone) == 3
    assert float(alone[1]) < float(alone[0])
    assert printed("tp", "gpt", tmp_path) == alone
    assert printed("pp", "gpt", tmp_path) == alone
