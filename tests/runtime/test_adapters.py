"""Adapters around a model whose weights come from its own checkpoint, which has none of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, get_peft_model
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from runtime.test_safe_tensors import TOKENS, answer, loss_of, of_config, saved
from torch import nn

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Plan

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated"),
    pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings"),
]

KINDS: dict[str, PeftConfig] = {
    "lora": LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"),
    "lora, an embedding trained whole": LoraConfig(
        task_type="CAUSAL_LM", r=4, modules_to_save=["embed_tokens"]
    ),
    "ia3": IA3Config(task_type="CAUSAL_LM"),
}


def with_adapters(kind: str = "lora") -> nn.Module:
    return get_peft_model(of_config("llama"), KINDS[kind])


def wrapped(checkpoint: Path, kind: str = "lora", chosen: Plan | None = None) -> nn.Module:
    return parastrat.auto_parallelize(
        partial(with_adapters, kind),
        plan=chosen or plan(),
        checkpoint=checkpoint,
        sample_inputs=TOKENS[:1],
        loss_fn=loss_of,
    )


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_model_is_the_checkpoints_and_adapters_begin_as_built(tmp_path: Path, kind: str) -> None:
    model = saved("llama", tmp_path)
    found, real = wrapped(tmp_path, kind), with_adapters(kind)
    # adapters change nothing at first
    assert torch.allclose(answer(found), answer(model), atol=1e-5)
    own = [name for name in dict(real.named_parameters()) if "lora_" in name or "ia3_" in name]
    assert own
    for name in own:
        expected, value = real.get_parameter(name), found.get_parameter(name)
        assert value.std().item() == pytest.approx(expected.std().item(), rel=0.4, abs=1e-6), name
        assert value.requires_grad == expected.requires_grad


def test_a_checkpoint_of_both_gives_both(tmp_path: Path) -> None:
    model = with_adapters()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    torch.save(model.state_dict(), tmp_path / "both.pt")
    found = wrapped(tmp_path / "both.pt")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.state_dict().items())


def test_what_follows_from_the_models_weights_is_refused(tmp_path: Path) -> None:
    """DoRA begins with the norms of the weights, which were not there when it was built."""
    saved("llama", tmp_path)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, use_dora=True)

    def build() -> PeftModel:
        return get_peft_model(of_config("llama"), config)  # type: ignore[return-value]

    with pytest.raises(WrapError, match="lora_magnitude_vector"):
        parastrat.auto_parallelize(build, plan=plan(), checkpoint=tmp_path)


PLANS: dict[str, Plan] = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2),
    "pp": plan(pp=2, gradient_accumulation_steps=2),
}


def losses(chosen: Plan | None, model: nn.Module) -> list[float]:
    """Return the losses of some steps, of adapters that begin with the same weights everywhere."""
    rank = torch.distributed.get_rank() if chosen is not None and chosen.mesh.dp > 1 else 0
    tokens = TOKENS.repeat(2, 1).roll(1, 1)
    count = 4 if chosen is None else chosen.micro_batch_size * chosen.gradient_accumulation_steps
    own = tokens[rank * count : (rank + 1) * count]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.fill_(0.1)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
    found = []
    for _ in range(3):
        if chosen is None:
            loss = loss_of(model(own), own)
            loss.backward()
        else:
            loss = parastrat.forward_backward(model, own, own)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


def everything(folder: Path) -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        name: partial(lambda each: losses(each, wrapped(folder, chosen=each)), chosen)
        for name, chosen in PLANS.items()
    }
    return answers(asked)


@pytest.mark.slow
def test_adapters_train_alike(tmp_path: Path) -> None:
    model = get_peft_model(saved("llama", tmp_path), KINDS["lora"])
    expected = losses(None, model)
    assert expected[-1] < expected[0]
    for found in on_ranks(2, everything, tmp_path):
        assert found == {name: pytest.approx(expected, rel=1e-4) for name in PLANS}
