"""Sequence parallelism where the structure allows it, and what is said where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from runtime.models import plan, tokens
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import Tiny, llama, trained
from runtime.training import TOLERANCE, alone

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Recompute
from parastrat.runtime.wrapping import wrapping_of

pytestmark = pytest.mark.slow

RUNS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "tp": (2, "tp:qwen3", {"tp": 2}),
    "tp, recomputed": (2, "tp:llama", {"tp": 2, "recompute": Recompute.FULL}),
    "fsdp2+tp": (4, "tp:qwen3", {"dp_shard": 2, "tp": 2}),
}
DIVIDED = "# between them the blocks' activations are divided along the sequence"


def widths() -> tuple[list[int], str]:
    """Positions that the norms of the blocks see, and what is said of a length that does not divide."""
    model = parastrat.auto_parallelize(llama(), plan=plan(tp=2, sequence_parallel=True))
    assert DIVIDED in wrapping_of(model).calls
    layout = wrapping_of(model).layout
    assert layout is not None
    assert layout.sequence
    seen: list[int] = []
    for name in ("model.layers.0.input_layernorm", "model.layers.1.post_attention_layernorm", "model.norm"):
        model.get_submodule(name).register_forward_hook(lambda _m, _a, output: seen.append(output.shape[1]))
    ids, _ = tokens(0, 2, vocab=64)
    model(input_ids=ids)
    try:
        model(input_ids=ids[:, :13])
    except WrapError as error:
        return seen, f"{error} {error.hint}"
    return seen, ""


def left_out() -> list[str]:
    model = parastrat.auto_parallelize(Tiny(), plan=plan(tp=2, sequence_parallel=True, loss_parallel=True))
    return wrapping_of(model).calls


def on(world: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: trained(model, {**fields, "sequence_parallel": True})
        for name, (ranks, model, fields) in RUNS.items()
        if ranks == world
    }
    if world == 2:
        found["widths"], found["left out"] = widths(), left_out()
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return {**on_ranks(2, on, 2)[1], **on_ranks(4, on, 4)[3]}


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_one_process(name: str, found: dict[str, Any]) -> None:
    losses, _ = found[name]
    expected = alone(RUNS[name][1])
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= TOLERANCE


def test_blocks_see_a_share_of_the_positions(found: dict[str, Any]) -> None:
    seen, said = found["widths"]
    assert seen == [8, 8, 16]
    assert "13 positions do not divide by tp 2" in said
    assert "pad sequences to a multiple of 2" in said


def test_what_is_left_out_is_said(found: dict[str, Any]) -> None:
    calls = "\n".join(found["left out"])
    assert "sequence parallelism: not proven: " in calls
    assert "loss parallelism is left out" in calls
    assert DIVIDED not in calls
