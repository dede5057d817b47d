"""The main job: a plan for a real model on real hardware, and a real training under such a plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPT = ROOT / "examples" / "train_gpt.py"


def parastrat(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parastrat", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        check=False,
    )


def test_recommends_a_plan_for_llama_70b_on_eight_dgx_h100() -> None:
    done = parastrat("recommend", "llama-3.1-70b", "--on", "dgx-h100:8", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema"] == "parastrat.recommendation/1"
    plan = answer["plan"]
    assert plan["pp"] * plan["dp_replicate"] * plan["dp_shard"] * plan["cp"] * plan["tp"] == 64
    assert answer["fits"] is True
    memory = answer["estimate"]["memory"]
    parts = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")
    assert sum(memory[part] for part in parts) == memory["total"] <= memory["capacity"]
    assert [rung["status"] for rung in answer["rungs"]].count("taken") == 1


@pytest.mark.slow
def test_plans_and_trains_the_example_on_this_machine(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    planned = parastrat(
        "recommend",
        f"{GPT}:build",
        *("--on", "auto", "--ranks-per-node", "2", "--strategy", "fsdp2", "-o", str(plan)),
        *("--seq-len", "64", "--global-batch", "32", "--micro-batch", "16"),
    )
    assert planned.returncode == 0, planned.stderr
    assert plan.is_file()
    trained = parastrat("run", str(plan), str(GPT), "--steps", "12")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", trained.stdout)]
    assert len(losses) >= 2
    assert losses[-1] < losses[0] - 0.5
