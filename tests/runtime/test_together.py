"""Several ranks under one plan: weights, agreement, uneven shares, checkpoints, evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.cells import SHARE, labelled, on_four, on_two, trained, uneven_batch, whole
from runtime.models import Gpt, plan, token_loss, tokens
from runtime.ranks import on_ranks
from torch.nn import functional

import parastrat

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """One process: initial weights, a file of weights, two steps saved, and the five steps after them."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Gpt, plan=plan(gradient_accumulation_steps=4))
    initial = whole(model)
    torch.save(Gpt().state_dict(), folder / "plain.pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trained(model, optimizer, range(2), 2 * SHARE)
    parastrat.save_checkpoint(model, optimizer, folder / "single", extra={"step": 2})
    return {"initial": initial, "losses": one_process(model, optimizer, range(2, 7))}


def one_process(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    return [parastrat_step(model, optimizer, step) for step in steps]


def parastrat_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    x, y = tokens(step, 2 * SHARE)
    loss = parastrat.forward_backward(model, x, y, loss_fn=token_loss)
    parastrat.clip_grad_norm_(model, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@pytest.fixture(scope="module")
def two(folder: Path, alone: dict[str, Any]) -> Found:
    assert alone
    return on_ranks(2, on_two, folder)


@pytest.fixture(scope="module")
def four(folder: Path, two: Found) -> Found:
    assert two
    return on_ranks(4, on_four, folder)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "hsdp"])
def test_initial_weights_do_not_depend_on_the_plan(
    strategy: str, alone: dict[str, Any], two: Found, four: Found
) -> None:
    for found in four if strategy == "hsdp" else two:
        assert same(found[f"initial-{strategy}"], alone["initial"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "hsdp"])
def test_a_built_model_keeps_the_weights_of_rank_0(strategy: str, two: Found, four: Found) -> None:
    torch.manual_seed(0)
    expected = Gpt().state_dict()
    for found in four if strategy == "hsdp" else two:
        assert same(found[f"built-{strategy}"], expected)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_file_of_weights_is_loaded_on_every_rank(strategy: str, folder: Path, two: Found) -> None:
    expected = torch.load(folder / "plain.pt")
    for found in two:
        assert same(found[f"file-{strategy}"], expected)


def test_ties_hold_through_training(two: Found) -> None:
    assert two[0]["ties"] == two[1]["ties"] == (True, True, True)


def test_keys_are_those_of_the_plain_model(two: Found) -> None:
    plain = list(Gpt().state_dict())
    assert two[0]["keys"]["fsdp2"] == plain
    assert two[0]["keys"]["ddp"] == [f"module.{name}" for name in plain]


def test_buffers_are_sent_again_only_where_they_change(two: Found) -> None:
    assert two[0]["buffers"]


def test_ranks_with_different_plans_are_named(two: Found) -> None:
    for found in two:
        kind, said = found["different_plans"]
        assert kind == "MismatchError"
        assert "rank 0: Gpt under ddp, dp_replicate 2; rank 1: Gpt under fsdp2, dp_shard 2" in said


def test_ranks_with_different_models_are_named(two: Found) -> None:
    assert all("rank 0: Gpt under ddp" in found["different_models"][1] for found in two)


def test_all_ranks_stop_if_one_has_a_plan_for_another_world(two: Found) -> None:
    assert two[0]["different_worlds"] == (
        "MismatchError",
        "rank 1 refused: plan is for 4 ranks (dp_shard 4), 2 were started",
    )
    assert two[1]["different_worlds"][1].startswith("plan is for 4 ranks")


def test_all_ranks_stop_if_one_holds_a_stale_optimizer(two: Found) -> None:
    assert two[0]["stale_optimizer"][0] == "MismatchError"
    assert two[0]["stale_optimizer"][1].startswith("rank 1 refused: an optimizer (SGD) built before")
    assert two[1]["stale_optimizer"][0] == "WrapError"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_uneven_targets_weigh_what_they_are(strategy: str, two: Found) -> None:
    """Micro-batches without targets, and a rank with fewer samples, against one plain batch."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Gpt, plan=plan())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected, norm = [], torch.zeros(())
    for step in range(3):
        x, y = uneven_batch(step)
        loss = token_loss(model(x), y)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    for found in two:
        losses, last_norm = found[f"uneven-{strategy}"]
        assert losses == pytest.approx(expected, abs=1e-5)
        assert last_norm == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_training_goes_on_from_another_plans_checkpoint(
    strategy: str, alone: dict[str, Any], two: Found
) -> None:
    assert two[0][f"resumed-{strategy}"] == pytest.approx(alone["losses"][:3], abs=1e-5)


def test_training_goes_on_from_two_sharded_ranks_to_four(alone: dict[str, Any], four: Found) -> None:
    assert four[0]["resumed-hsdp"] == pytest.approx(alone["losses"][3:], abs=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_training_goes_on_alone_from_several_ranks(
    strategy: str, folder: Path, alone: dict[str, Any], two: Found
) -> None:
    assert two
    model = parastrat.auto_parallelize(Gpt, plan=plan(gradient_accumulation_steps=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert parastrat.load_checkpoint(model, optimizer, folder / strategy) == {"step": 5}
    losses = [parastrat_step(model, optimizer, step) for step in (5, 6)]
    assert losses == pytest.approx(alone["losses"][3:], abs=1e-5)


def test_a_saved_folder_serves_as_first_weights(folder: Path, two: Found) -> None:
    assert two
    first = parastrat.auto_parallelize(Gpt, plan=plan(), checkpoint=folder / "fsdp2")
    second = parastrat.auto_parallelize(Gpt(), plan=plan(), checkpoint=folder / "ddp")
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4), name
    assert first.head.weight is first.embed.weight


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_every_sample_is_evaluated_once(strategy: str, two: Found) -> None:
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(lambda: torch.nn.Linear(3, 2), plan=plan())
    inputs, targets = labelled().tensors
    expected = functional.cross_entropy(model(inputs), targets).item()
    for found in two:
        means, singles, training = found[f"evaluated-{strategy}"]
        assert means == pytest.approx(expected, rel=1e-6)
        assert singles == pytest.approx(expected, rel=1e-6)
        assert training


def test_shares_make_up_the_batches_of_one_process(two: Found) -> None:
    first, second = (found["shares-False-False"] for found in two)
    assert first == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 18]]
    assert second == [[4, 5, 6, 7], [12, 13, 14, 15], [17]]
    assert two[1]["shares-False-True"] == second[:2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_shuffled_shares_do_not_overlap(two: Found, *, drop_last: bool) -> None:
    drawn = [sample for found in two for batch in found[f"shares-True-{drop_last}"] for sample in batch]
    assert len(drawn) == len(set(drawn)) == (16 if drop_last else 19)
    assert drawn != sorted(drawn)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_scaled_gradients_of_several_steps_add_up(strategy: str, two: Found) -> None:
    assert all(found[f"added-up-{strategy}"] < 0.01 for found in two)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_an_overflow_skips_the_step_on_all_ranks(strategy: str, two: Found) -> None:
    assert all(found[f"overflow-{strategy}"] == (True, True, 2.0**39) for found in two)


def test_the_wrapping_is_explained_in_plain_torch(two: Found) -> None:
    sharded = two[0]["explained-fsdp2"]
    assert "mesh = init_device_mesh('cpu', (2,), mesh_dim_names=('dp_shard',))" in sharded
    assert "for name in ('layers.0', 'layers.1'):" in sharded
    assert "fully_shard(model, reshard_after_forward=False" in sharded
    assert "DistributedDataParallel(model" in two[0]["explained-ddp"]
