"""Tensor parallelism with data axes, formats, recompute and checkpoints: what one process does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn import drawn
from runtime.cells import Weights, whole
from runtime.ranks import on_ranks
from runtime.tensor_parallel.cells import VARIANTS, adam, evaluated, every_cell, run, trained, wrapped
from runtime.tensor_parallel.models import Tiny

import parastrat

pytestmark = pytest.mark.slow

_ALL_BUT_FP32 = [name for name in VARIANTS if name != "fp32"]
#: strategy -> ranks, axes, variants; each wrap takes a second on every rank
_ALL: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    "tp": (2, {"tp": 2}, ["fp32", *drawn(_ALL_BUT_FP32, 1)]),
    "fsdp2+tp": (4, {"dp_shard": 2, "tp": 2}, ["fp32", *drawn(["bf16-mixed", "full"], 1)]),
    "ddp+tp": (4, {"dp_replicate": 2, "tp": 2}, ["fp32"]),
}
STRATEGIES = {name: _ALL[name] for name in ("tp", *drawn(["fsdp2+tp", "ddp+tp"], 1))}
#: strategies that begin from files and built models too
STARTS = drawn([name for name in STRATEGIES if name != "ddp+tp"], 1)
CELLS = [(strategy, variant) for strategy, (_, _, variants) in STRATEGIES.items() for variant in variants]
Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtures")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {name: run(changed) for name, changed in VARIANTS.items()}
    model = wrapped({})
    found["initial"], found["evaluated"] = whole(model), evaluated(model)
    torch.save(model.state_dict(), folder / "plain.pt")
    optimizer = adam(model)
    trained(model, optimizer, {}, range(2))
    parastrat.save_checkpoint(model, optimizer, folder / "single", extra={"step": 2})
    found["saved"] = whole(model)
    found["resumed"], _ = trained(model, optimizer, {}, range(2, 5))
    found["after"] = whole(model)
    return found


@pytest.fixture(scope="module")
def together(folder: Path, alone: dict[str, Any]) -> Found:
    assert alone
    return {
        name: on_ranks(world, partial(every_cell, starts=name in STARTS), fields, folder, variants)[-1]
        for name, (world, fields, variants) in STRATEGIES.items()
    }


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("strategy", "variant"), CELLS)
def test_losses_and_gradient_norms(
    strategy: str, variant: str, together: Found, alone: dict[str, Any]
) -> None:
    (losses, norms), (expected, expected_norms) = together[strategy][variant], alone[variant]
    apart = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    if variant in {"bf16", "bf16-mixed", "fp16-mixed"}:
        rounding = max(abs(a - b) for a, b in zip(expected, alone["fp32"][0], strict=True))
        assert apart <= max(3 * rounding, 1e-3)
        assert norms == pytest.approx(expected_norms, rel=0.02)
    else:
        assert apart <= 1e-5
        assert norms == pytest.approx(expected_norms, rel=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_first_weights_do_not_depend_on_the_plan(
    strategy: str, together: Found, alone: dict[str, Any]
) -> None:
    assert same(together[strategy]["initial"], alone["initial"])
    if strategy in STARTS:
        assert same(together[strategy]["file"], alone["initial"])
        assert same(together[strategy]["folder"], alone["saved"])


@pytest.mark.parametrize("strategy", STARTS)
def test_a_built_model_keeps_the_weights_of_rank_0(strategy: str, together: Found) -> None:
    torch.manual_seed(0)
    assert same(together[strategy]["built"], Tiny().state_dict())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_goes_on_from_a_checkpoint_and_back(
    strategy: str, together: Found, alone: dict[str, Any], folder: Path
) -> None:
    losses = together[strategy]["resumed"]
    assert losses == pytest.approx(alone["resumed"], abs=1e-5)
    model = wrapped({})
    parastrat.load_checkpoint(model, None, folder / together[strategy]["saved_as"])
    for name, weight in whole(model).items():
        torch.testing.assert_close(weight, alone["after"][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_torch_sees(strategy: str, together: Found, alone: dict[str, Any]) -> None:
    assert together[strategy]["dtensors"]
    assert together[strategy]["keys"] == list(Tiny().state_dict())
    assert together[strategy]["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-6)
