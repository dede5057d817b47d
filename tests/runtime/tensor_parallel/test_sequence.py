"""Sequence parallelism where the structure allows it, and what is said where it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.models import plan, token_loss, tokens
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import ALL, Tiny, at_once, llama, trained
from runtime.training import FEW, TOLERANCE, alone
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Recompute, Shard
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


def gradients_twice(**fields: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients of one step, and of two that are added up, of weights that are whole on every rank."""
    steps = {"gradient_accumulation_steps": 2, "micro_batch_size": 1}
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(llama(), plan=plan(tp=2, sequence_parallel=True, **steps, **fields))
    x, y = tokens(0, 2, vocab=64)
    with torch.no_grad():
        model(x)  # FSDP2 keeps the root's weights gathered behind it
    found = []
    for _ in range(2):
        parastrat.forward_backward(model, x, y, loss_fn=lambda output, y: token_loss(output.logits, y))
        whole = [parameter for name, parameter in model.named_parameters() if "norm" in name]
        found.append([parameter.grad.full_tensor().clone() for parameter in whole])
    return found[0], found[1]


def left_out() -> list[str]:
    model = parastrat.auto_parallelize(Tiny(), plan=plan(tp=2, sequence_parallel=True))
    return wrapping_of(model).calls


class Mixing(nn.Module):
    """A block that mixes positions where nothing is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + x.mean(1, keepdim=True)
        return x + self.down(torch.relu(self.up(x)))


class Mixer(nn.Module):
    """Such blocks between an embedding, called as a module or as a function, and a head."""

    def __init__(self, *, called: bool) -> None:
        super().__init__()
        self.called = called
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.blocks = nn.ModuleList(Mixing() for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) if self.called else functional.embedding(ids, self.embed.weight)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def of_zeros(*, called: bool) -> tuple[list[str], float]:
    """What is said of a layout that was proven on ids that are all 0, and how far other ids are off."""
    torch.manual_seed(0)
    plain = Mixer(called=called)
    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))
    expected = plain(ids)
    zeros = torch.zeros(2, 16, dtype=torch.int64)
    model = parastrat.auto_parallelize(plain, plan=plan(tp=2, sequence_parallel=True), sample_inputs=zeros)
    return wrapping_of(model).calls, float((model(ids) - expected).abs().max())


def on(world: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: trained(model, {**fields, "sequence_parallel": True})
        for name, (ranks, model, fields) in RUNS.items()
        if ranks == world
    }
    if world == 2:
        found["widths"], found["left out"] = widths(), left_out()
        found["twice"] = gradients_twice()
    if world == 4:
        found["twice, sharded"] = gradients_twice(dp_shard=2, shard=Shard.PARAMETERS)
    if world == 2:
        found["zeros"] = [of_zeros(called=called) for called in (True, False)]
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
    for cell in ("twice", "twice, sharded"):
        once, twice = found[cell]
        assert all(gradient.abs().max() > 0 for gradient in once)
        torch.testing.assert_close(twice, [2 * gradient for gradient in once])
    # ranks that share parameters saw the same samples
    torch.testing.assert_close(found["twice, sharded"][0], found["twice"][0])


def test_what_is_left_out_is_said(found: dict[str, Any]) -> None:
    calls = "\n".join(found["left out"])
    assert "sequence parallelism: not proven: " in calls
    assert "along the sequence, from" not in calls


def test_a_sample_of_zeros_does_not_prove_that_positions_may_be_divided(found: dict[str, Any]) -> None:
    """All positions are alike in it, so that what a rank does not see of the others would not show."""
    for (calls, apart), reason in zip(
        found["zeros"], ("not proven: ", "positions of the sample are alike"), strict=True
    ):
        assert "# over mesh['tp'], column: blocks.*.up" in calls
        assert f"# whole on every tp rank: sequence parallelism: {reason}" in "\n".join(calls)
        assert apart < 1e-5
