"""The example under tensor and pipeline parallelism: the losses of one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), "--model", model, "--steps", "3", "--seq-len", "32"],
        env={**os.environ, "PARASTRAT_PLAN": str(plan), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return re.findall(r"loss (\d+\.\d{3})", done.stdout)


@pytest.mark.slow
def test_losses_do_not_depend_on_the_plan(tmp_path: Path) -> None:
    alone = printed("single", "gpt", tmp_path)
    # two steps, and what was held out
    assert len(alone) == 3
    assert float(alone[1]) < float(alone[0])
    assert printed("tp", "gpt", tmp_path) == alone
    assert printed("pp", "gpt", tmp_path) == alone
