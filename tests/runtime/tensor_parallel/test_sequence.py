"""Sequence parallelism where the structure allows it, and what is said where it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.models import plan, token_loss, tokens
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import ALL, Tiny, at_once, llama, trained
from runtime.training import FEW, TOLERANCE, alone

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Recompute
from parastrat.runtime.wrapping import wrapping_of

pytestmark = pytest.mark.slow

RUNS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "tp": (2, "tp:qwen3", {"tp": 2}),
    "tp, recomputed": (2, "tp:llama", {"tp": 2, "recompute": Recompute.FULL}),
    "fsdp2+tp": (4, "tp:uneven", {"dp_shard": 2, "tp": 2, "loss_parallel": True}),
}
DIVIDED = "# between them activations are divided along the sequence, from {} to {}"


def widths() -> tuple[list[int], list[str]]:
    """Positions that the norms of the blocks see, and what is said of a length that does not divide."""
    model = parastrat.auto_parallelize(llama(), plan=plan(tp=2, sequence_parallel=True))
    # its own code counts positions behind the embedding, which must be whole
    assert DIVIDED.format("the first block", "lm_head") in wrapping_of(model).calls
    layout = wrapping_of(model).layout
    assert layout is not None
    assert layout.sequence
    seen: list[int] = []
    for name in ("model.layers.0.input_layernorm", "model.layers.1.post_attention_layernorm", "model.norm"):
        model.get_submodule(name).register_forward_hook(lambda _m, _a, output: seen.append(output.shape[1]))
    ids, _ = tokens(0, 2, vocab=64)
    model(input_ids=ids)
    widths, refused = list(seen), []
    for keywords in ({"input_ids": ids[:, :13]}, {"input_ids": ids, "logits_to_keep": 4}):
        try:
            model(**keywords)
        except WrapError as error:
            refused.append(f"{error} {error.hint}")
    return widths, refused


def gradients_twice() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients of one step, and of two that are added up, of weights that are whole on every rank."""
    model = parastrat.auto_parallelize(llama(), plan=plan(tp=2, sequence_parallel=True))
    whole = [parameter for name, parameter in model.named_parameters() if "norm" in name]
    x, y = tokens(0, 2, vocab=64)
    found = []
    for _ in range(2):
        parastrat.forward_backward(model, x, y, loss_fn=lambda output, y: token_loss(output.logits, y))
        found.append([parameter.grad.full_tensor().clone() for parameter in whole])
    return found[0], found[1]


def left_out() -> list[str]:
    model = parastrat.auto_parallelize(Tiny(), plan=plan(tp=2, sequence_parallel=True))
    return wrapping_of(model).calls


def on(world: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: trained(model, {**fields, "sequence_parallel": True})
        for name, (ranks, model, fields) in RUNS.items()
        if ranks == world
    }
    if world == 2:
        found["widths"], found["left out"] = widths(), left_out()
        found["twice"] = gradients_twice()
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return {**on_ranks(2, on, 2)[1], **on_ranks(4, on, 4)[3]}


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_one_process(name: str, found: dict[str, Any]) -> None:
    losses, _ = found[name]
    model = RUNS[name][1]
    expected = at_once(model) if model == "tp:uneven" else alone(model, models=ALL, steps=FEW)
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= TOLERANCE


def test_blocks_see_a_share_of_the_positions(found: dict[str, Any]) -> None:
    seen, said = found["widths"]
    assert seen == [8, 8, 8]
    assert "13 positions do not divide by tp 2" in said[0]
    assert "pad sequences to a multiple of 2" in said[0]
    assert "the head was to get all 8 positions of this rank's share, and got (2, 4, 32)" in said[1]


def test_gradients_add_up_over_steps(found: dict[str, Any]) -> None:
    once, twice = found["twice"]
    assert any(gradient.abs().max() > 0 for gradient in once)
    torch.testing.assert_close(twice, [2 * gradient for gradient in once])


def test_what_is_left_out_is_said(found: dict[str, Any]) -> None:
    calls = "\n".join(found["left out"])
    assert "sequence parallelism: not proven: " in calls
    assert "along the sequence, from" not in calls
