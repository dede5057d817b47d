"""Running statistics are rank 0's wherever they count: evaluation, checkpoints; and are counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.buffer_cells import Cell, Normed, every_cell, labelled, statistics, trained
from runtime.models import Gpt, plan
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import Recompute
from parastrat.runtime.tensors.buffers import has_changing_buffers
from parastrat.workload import Precision

STRATEGIES: dict[int, dict[str, dict[str, Any]]] = {
    2: {"ddp": {"dp_replicate": 2}, "fsdp2": {"dp_shard": 2}},
    4: {"hsdp": {"dp_replicate": 2, "dp_shard": 2}},
}
EVERY = [(world, name) for world, strategies in STRATEGIES.items() for name in strategies]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("buffers")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> dict[int, list[Cell]]:
    return {world: on_ranks(world, every_cell, folder, found) for world, found in STRATEGIES.items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def loaded(path: Path) -> nn.Module:
    model = parastrat.auto_parallelize(Normed, plan=plan())
    parastrat.load_checkpoint(model, None, path)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(("world", "strategy"), EVERY)
def test_a_loop_of_ones_own_evaluates_alike_on_all_ranks(
    world: int, strategy: str, ranks: dict[int, list[Cell]]
) -> None:
    first, *others = (found[strategy] for found in ranks[world])
    for other in others:
        assert not same(first["drifted"], other["drifted"])  # else the rest would prove nothing
        assert same(first["by_hand"], other["by_hand"])
        assert torch.equal(first["outputs"], other["outputs"])
    assert same(first["by_hand"], first["drifted"])


@pytest.mark.slow
@pytest.mark.parametrize(("world", "strategy"), EVERY[1:])  # copies of DDP are torch's own
def test_averages_of_weights_answer_alike_on_all_ranks(
    world: int, strategy: str, ranks: dict[int, list[Cell]]
) -> None:
    first, *others = (found[f"{strategy}-averaged"] for found in ranks[world])
    assert not torch.equal(first[0], first[-1])
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("world", "strategy"), EVERY[1:])
def test_statistics_are_sent_while_a_backward_is_pending(
    world: int, strategy: str, ranks: dict[int, list[Cell]]
) -> None:
    for rank in ranks[world]:
        pending, one_by_one = rank[f"{strategy}-pending"]
        torch.testing.assert_close(pending, one_by_one)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "strategy"), EVERY)
def test_a_checkpoint_keeps_the_statistics_of_rank_0(
    world: int, strategy: str, ranks: dict[int, list[Cell]], folder: Path
) -> None:
    assert same(statistics(loaded(folder / strategy / "at-once")), ranks[world][0][strategy]["own"])


@pytest.mark.slow
@pytest.mark.parametrize(("world", "strategy"), EVERY)
def test_evaluation_is_that_of_one_process_with_the_checkpoint(
    world: int, strategy: str, ranks: dict[int, list[Cell]], folder: Path
) -> None:
    inputs, targets = labelled().tensors
    expected = functional.cross_entropy(loaded(folder / strategy / "evaluated")(inputs), targets).item()
    for found in ranks[world]:
        assert found[strategy]["loss"] == pytest.approx(expected, abs=1e-6)
        assert same(found[strategy]["in_the_end"], ranks[world][0][strategy]["in_the_end"])


@pytest.mark.slow
@pytest.mark.parametrize(("world", "strategy"), EVERY)
def test_norms_with_statistics_stay_in_fp32(
    world: int, strategy: str, ranks: dict[int, list[Cell]]
) -> None:
    for found in ranks[world]:
        cell = found[f"{strategy}-short"]
        assert cell["formats"] == {"torch.float32"}
        assert cell["bf16-mixed"] == pytest.approx(cell["fp32"], abs=0.05)
        assert cell["bf16-mixed"] != cell["fp32"]


@pytest.mark.parametrize("recompute", [Recompute.FULL, Recompute.SELECTIVE])
def test_a_recomputed_batch_is_counted_once(recompute: Recompute) -> None:
    found = []
    for policy in (Recompute.NONE, recompute):
        torch.manual_seed(0)
        model = parastrat.auto_parallelize(Normed, plan=plan(recompute=policy))
        losses = trained(model, rank=0)
        values = [buffer.tolist() for buffer in model.buffers()]
        momenta = {part.momentum for part in model.modules() if isinstance(part, nn.BatchNorm1d)}
        found.append((losses, values, momenta))
    assert found[0] == found[1]


def test_bf16_weights_leave_norms_with_statistics_alone() -> None:
    model = parastrat.auto_parallelize(Normed, plan=plan(precision=Precision.BF16))
    assert model.head.weight.dtype is torch.bfloat16
    assert model.blocks[0].norm.weight.dtype is torch.float32
    assert model(torch.randn(4, 8, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_constants_outside_of_checkpoints_are_not_sent() -> None:
    assert has_changing_buffers(Normed())
    assert not has_changing_buffers(Gpt())
