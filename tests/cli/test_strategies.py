from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import hardware

from parastrat.cli.flags import FixedFlags
from parastrat.cli.strategies import check_degrees, given_mesh, strategy_of, unusual_shard
from parastrat.errors import UsageError
from parastrat.hardware import Hardware
from parastrat.plan import Mesh, Shard

TWO_NODES = hardware(num_nodes=2)


def mesh(machines: Hardware = TWO_NODES, **flags: Any) -> Mesh:
    return given_mesh(FixedFlags(**flags), machines)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("single", "single"),
        ("FSDP2", "fsdp2"),
        ("tp", "tp"),
        ("pp+tp+hsdp", "hsdp+tp+pp"),
        ("cp+tp", "fsdp2+cp+tp"),
        ("ddp + ep + cp", "ddp+cp+ep"),
    ],
)
def test_names_are_read_in_any_order(typed: str, name: str) -> None:
    strategy = strategy_of(FixedFlags(strategy=typed))
    assert strategy is not None
    assert strategy.name == name


@pytest.mark.parametrize("typed", ["", "fsdp3", "ddp+fsdp2", "tp+tp", "single+tp", "fsdp2++tp"])
def test_other_names_are_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="unknown strategy") as error:
        strategy_of(FixedFlags(strategy=typed))
    assert "fsdp2" in error.value.hint


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"strategy": "fsdp2", "tp": 2}, "--tp 2"),
        ({"strategy": "fsdp2+tp", "tp": 1}, "--tp 1"),
        ({"strategy": "ddp", "dp_shard": 2}, "--dp-shard 2"),
        ({"strategy": "fsdp2", "dp_replicate": 2}, "--dp-replicate 2"),
        ({"strategy": "tp", "dp_shard": 2}, "--dp-shard 2"),
        ({"strategy": "hsdp", "pp": 4}, "--pp 4"),
    ],
)
def test_flags_that_contradict_the_strategy_are_named(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"{named} contradict"):
        strategy_of(FixedFlags(**flags))


def test_flags_that_agree_with_the_strategy() -> None:
    for flags in ({"strategy": "ddp", "dp_shard": 1}, {"strategy": "hsdp", "dp_replicate": 2}):
        assert strategy_of(FixedFlags(**flags)) is not None


def test_the_data_axes_take_what_is_left() -> None:
    assert mesh() == Mesh(dp_shard=16)
    assert mesh(tp=8) == Mesh(dp_shard=2, tp=8)
    assert mesh(pp=2, cp=2, tp=2) == Mesh(pp=2, cp=2, tp=2, dp_shard=2)
    assert mesh(dp_replicate=2) == Mesh(dp_replicate=2, dp_shard=8)
    assert mesh(dp_shard=2) == Mesh(dp_replicate=8, dp_shard=2)
    assert mesh(strategy="ddp") == Mesh(dp_replicate=16)
    assert mesh(strategy="ddp+tp", tp=4) == Mesh(dp_replicate=4, tp=4)


def test_hsdp_shards_inside_the_fast_domain() -> None:
    assert mesh(strategy="hsdp") == Mesh(dp_replicate=2, dp_shard=8)
    assert mesh(strategy="hsdp+tp", tp=2) == Mesh(dp_replicate=2, dp_shard=4, tp=2)
    assert mesh(strategy="hsdp", dp_shard=4) == Mesh(dp_replicate=4, dp_shard=4)
    assert mesh(strategy="hsdp", dp_replicate=8) == Mesh(dp_replicate=8, dp_shard=2)
    odd = replace(TWO_NODES, num_nodes=3, scale_up_devices=16)
    assert mesh(odd, strategy="hsdp") == Mesh(dp_replicate=2, dp_shard=12)


def test_hsdp_inside_one_fast_domain_shards_inside_a_node() -> None:
    rack = replace(TWO_NODES, scale_up_devices=72, num_nodes=9)
    assert mesh(rack, strategy="hsdp") == Mesh(dp_replicate=9, dp_shard=8)


def test_hsdp_needs_groups() -> None:
    with pytest.raises(UsageError, match="dp_replicate 1 x dp_shard 8 is fsdp2"):
        mesh(replace(TWO_NODES, num_nodes=1), strategy="hsdp")
    with pytest.raises(UsageError, match="dp_replicate 2 x dp_shard 1 is ddp"):
        mesh(strategy="hsdp+tp", tp=8)


def test_ep_lies_inside_the_others() -> None:
    assert mesh(ep=8) == Mesh(dp_shard=16, ep=8)


@pytest.mark.parametrize(
    ("strategy", "shard"),
    [
        (None, None),
        ("hsdp", None),
        ("ddp", None),
        ("tp", None),
        ("zero1", Shard.OPTIMIZER),
        ("zero2+tp", Shard.GRADIENTS),
        ("ddp+cp", Shard.NONE),
    ],
)
def test_what_is_split_unusually(strategy: str | None, shard: Shard | None) -> None:
    assert unusual_shard(FixedFlags(strategy=strategy)) is shard


def test_a_product_that_cannot_be_the_world_is_written_out() -> None:
    with pytest.raises(UsageError) as error:
        mesh(pp=3, tp=8)
    assert "pp 3 x tp 8: 24 ranks do not divide 16" in error.value.message
    with pytest.raises(UsageError, match="dp_replicate 2 x dp_shard 2 x tp 2: 8 ranks are not 16"):
        mesh(dp_replicate=2, dp_shard=2, tp=2)
    with pytest.raises(UsageError, match="tp 8: 8 ranks are not 16"):
        mesh(strategy="tp", tp=8)


def test_a_strategy_asks_for_the_degrees_of_its_axes() -> None:
    with pytest.raises(UsageError) as error:
        mesh(strategy="fsdp2+tp")
    assert error.value.hint == "add --tp and its degree"


def test_degrees_of_a_search_need_only_divide_the_world() -> None:
    check_degrees(FixedFlags(tp=2, pp=2), TWO_NODES)
    with pytest.raises(UsageError, match="tp 5: 5 ranks do not divide 16"):
        check_degrees(FixedFlags(tp=5), TWO_NODES)
