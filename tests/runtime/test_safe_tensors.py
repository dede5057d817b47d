"""Weights from safetensors, as Hugging Face keeps them, into what a function builds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig

import parastrat
from parastrat.errors import ModelError, UsageError, WrapError
from parastrat.plan import Plan

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "gpt2": GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32),
}
TOKENS = torch.arange(16).view(2, 8)


def of_config(kind: str) -> nn.Module:
    return AutoModelForCausalLM.from_config(CONFIGS[kind])  # type: ignore[no-any-return]


def saved(kind: str, folder: Path, **keywords: Any) -> nn.Module:
    """Write a model as save_pretrained does; return it."""
    torch.manual_seed(3)
    model: Any = of_config(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(folder, **keywords)
    return model  # type: ignore[no-any-return]


def loaded(kind: str, checkpoint: Path, chosen: Plan | None = None) -> nn.Module:
    return parastrat.auto_parallelize(
        partial(of_config, kind), plan=chosen or plan(), checkpoint=checkpoint, sample_inputs=TOKENS[:1]
    )


def answer(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(TOKENS).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", ["1GB", "20KB"])
def test_a_models_folder_is_read(tmp_path: Path, size: str) -> None:
    model = saved("llama", tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "20KB")
    found = loaded("llama", tmp_path)
    assert torch.equal(answer(found), answer(model))
    assert found.lm_head.weight is found.model.embed_tokens.weight  # type: ignore[union-attr]


def test_a_file_is_read_into_the_models_format(tmp_path: Path) -> None:
    model = saved("llama", tmp_path)
    halves = {name: value.half() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(halves, tmp_path / "half.safetensors")
    found = loaded("llama", tmp_path / "half.safetensors")
    for name, value in found.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, model.state_dict()[name].half().float()), name


def test_the_body_alone_is_read_under_its_name(tmp_path: Path) -> None:
    """GPT-2's own checkpoints have no head, and masks that later versions make themselves."""
    model = saved("gpt2", tmp_path / "whole")
    state = {f"{name}": value.clone() for name, value in model.transformer.state_dict().items()}  # type: ignore[union-attr, operator]
    save_file(state | {"h.0.attn.bias": torch.ones(32, 32)}, tmp_path / "model.safetensors")
    assert torch.equal(answer(loaded("gpt2", tmp_path)), answer(model))


def test_files_that_do_not_say_whose_they_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"weight": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(WrapError, match="2 files of safetensors, and no model"):
        loaded("llama", tmp_path)


def test_half_a_file_and_another_models(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(WrapError, match="cannot be read"):
        loaded("llama", tmp_path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(WrapError, match=r"lacks .* and \d+ more; has besides weight"):
        loaded("llama", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.pt", b"", "cannot be read as a file of torch.save"),
        ("note.txt", b"hello", "cannot be read as a file of torch.save"),
        ("part.pt", b"PK\x03\x04", "cannot be read as a file of torch.save"),
        ("empty.safetensors", b"", "cannot be read"),
        ("folder/config.json", b"{}", "has no safetensors, and is no folder of"),
        ("folder/model.safetensors.index.json", b"{}", "does not say which files"),
        ("folder/model.safetensors.index.json", b"[1]", "does not say which files"),
        ("folder/model.safetensors.index.json", b"no json", "does not say which files"),
        ("folder/model.safetensors.index.json", b'{"weight_map": {"a": "gone"}}', "gone cannot be read"),
    ],
)
def test_what_holds_no_weights(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(WrapError, match=said):
        loaded("llama", path.parent if name.startswith("folder/") else path)


def test_what_is_no_state(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(WrapError, match="holds a list, and no weights by name"):
        loaded("llama", tmp_path / "list.pt")


def test_from_pretrained_in_a_builder_is_told_of_checkpoint(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    with pytest.raises(ModelError) as caught:
        parastrat.auto_parallelize(lambda: AutoModelForCausalLM.from_pretrained(tmp_path), plan=plan())
    assert "checkpoint=" in str(caught.value.hint)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("llama", tmp_path)
    monkeypatch.setattr("parastrat.runtime.first_values.safe_tensors.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="safetensors, which is missing"):
        loaded("llama", tmp_path)


PLANS: dict[str, Plan] = {
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2),
    "pp": plan(pp=2, gradient_accumulation_steps=2),
}


def loss_of(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())


def loss_under(chosen: Plan, folder: Path) -> float:
    model = loaded("llama", folder, chosen)
    rank = torch.distributed.get_rank() if chosen.mesh.dp > 1 else 0
    tokens = TOKENS.repeat(2, 1).roll(1, 1)
    count = chosen.micro_batch_size * chosen.gradient_accumulation_steps
    own = tokens[rank * count : (rank + 1) * count]
    return float(parastrat.forward_backward(model, own, own, loss_fn=loss_of))


def everything(folder: Path) -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        name: partial(loss_under, chosen, folder) for name, chosen in PLANS.items()
    }
    return answers(asked)


@pytest.mark.slow
def test_every_rank_takes_its_share(tmp_path: Path) -> None:
    model = saved("llama", tmp_path, max_shard_size="20KB")
    tokens = TOKENS.roll(1, 1)
    with torch.no_grad():
        expected = float(loss_of(model(tokens), tokens))
    for found in on_ranks(2, everything, tmp_path):
        assert found == {name: pytest.approx(expected, rel=1e-5) for name in PLANS}
