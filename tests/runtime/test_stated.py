"""Where the plan comes from: an argument, a file, the environment, or a decision here and now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runtime.models import Gpt, plan, token_loss, tokens

import parastrat
from parastrat.errors import MismatchError, UsageError
from parastrat.plan import Backend
from parastrat.runtime.stated import Choice, backend, device_type, stated_choice
from parastrat.runtime.wrapping import wrapping_of

PLAN = """schema = "parastrat.plan/1"

[model]
ref = "gpt"
parameters = {parameters}
blocks = 2

[plan]
pp = 1
dp_replicate = 1
dp_shard = 1
cp = 1
tp = 1
ep = 1
micro_batch_size = 3
gradient_accumulation_steps = 1
precision = "fp32"
backend = "gloo"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    count = sum(parameter.numel() for parameter in Gpt().parameters())
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.format(parameters=count))
    return file


def test_the_environment_names_the_plan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARASTRAT_PLAN", str(path))
    assert wrapping_of(parastrat.auto_parallelize(Gpt())).plan.micro_batch_size == 3
    assert wrapping_of(parastrat.auto_parallelize(Gpt(), plan=plan())).plan.micro_batch_size == 2


def test_a_file_tells_the_length_of_its_samples(path: Path) -> None:
    assert stated_choice(path).sequence_length is None
    text = (
        "[workload]\nglobal_batch_size = 8\nsequence_length = 77\noptimizer = 'adamw'\nprecision = 'fp32'\n"
    )
    path.write_text(path.read_text() + text)
    assert stated_choice(path).sequence_length == 77


def test_a_file_made_for_another_model_is_refused(path: Path) -> None:
    with pytest.raises(
        MismatchError, match=r"plan is for gpt with .* in 2 repeated blocks; this Gpt has .* in 3"
    ):
        parastrat.auto_parallelize(Gpt(layers=3), plan=path)
    with pytest.raises(MismatchError, match=r"plan is for gpt"):
        parastrat.auto_parallelize(lambda: Gpt(vocab=62), plan=str(path))


def test_without_plan_or_sample_there_is_nothing_to_decide_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARASTRAT_PLAN", raising=False)
    assert stated_choice(None) is None
    with pytest.raises(UsageError, match="none can be decided without sample_inputs or workload"):
        parastrat.auto_parallelize(Gpt())


def test_gloo_plans_of_several_ranks_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_type(Choice(plan=plan())) == "cpu"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert device_type(Choice(plan=plan(dp_shard=2))) == "cpu"
    # one process has no collectives: the backend of its plan says nothing
    assert device_type(Choice(plan=plan())) == device_type(None) == "cuda"
    assert backend(Choice(plan=plan()), "cpu") is Backend.GLOO
    assert backend(None, "cuda") is Backend.NCCL


def test_decides_for_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that fits, alone: no parallelism, the weights' own format, the sample as the batch."""
    monkeypatch.delenv("PARASTRAT_PLAN", raising=False)
    inputs, targets = tokens(0, 2)
    model = parastrat.auto_parallelize(Gpt, sample_inputs=inputs, loss_fn=token_loss)
    chosen = wrapping_of(model).plan
    assert (chosen.strategy, chosen.precision.value, chosen.global_batch_size) == ("single", "fp32", 2)
    assert "decided on single" in capsys.readouterr().err
    assert torch.isfinite(parastrat.forward_backward(model, inputs, targets))
