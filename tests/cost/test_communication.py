from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parastrat.cost.communication import (
    Fabric,
    Group,
    all_reduce_s,
    all_to_all_s,
    fabric_between,
    ring_of,
    ring_s,
    ring_send_s,
    send_s,
)
from parastrat.hardware import CollectiveCurve, CollectiveCurves, Link
from parastrat.profiles import load_hardware
from parastrat.units import MIB

GB = 1e9


def fabric(domain: int = 8, *, gain: float = 1.0, efficiency: float = 1.0) -> Fabric:
    return Fabric(
        scale_up=Link(
            nominal_bytes_per_s=450 * GB, bytes_per_s=400 * GB, latency_s=1e-6, all_reduce_gain=gain
        ),
        scale_out=Link(nominal_bytes_per_s=50 * GB, bytes_per_s=40 * GB, latency_s=5e-6),
        domain=domain,
        efficiency=efficiency,
    )


def test_a_ring_inside_a_domain_moves_all_but_one_share() -> None:
    # 7/8 of 4 GB at 400 GB/s, and 7 hops
    assert ring_s(4 * GB, Group(ranks=8, stride=1), fabric()) == pytest.approx(7 / 8 * 4 / 400 + 7e-6)


def test_a_ring_over_nodes_leaves_each_through_all_its_cards() -> None:
    # 16 of 2 nodes: 8/16 of the buffer comes in through 8 cards of 40 GB/s; inside, 15/16 at 400
    seconds = ring_s(4 * GB, Group(ranks=16, stride=1), fabric())
    assert seconds == pytest.approx(max(15 / 16 * 4 / 400, 8 / 16 * 4 / (8 * 40)) + 14e-6 + 5e-6)


def test_one_member_a_node_has_one_card() -> None:
    # stride 8: each node holds one member, 3/4 of the buffer comes through one card
    seconds = ring_s(4 * GB, Group(ranks=4, stride=8), fabric())
    assert seconds == pytest.approx(3 / 4 * 4 / 40 + 3 * 5e-6)


def test_an_all_reduce_is_two_rings_and_the_switch_helps_inside() -> None:
    inside = Group(ranks=8, stride=1)
    assert all_reduce_s(4 * GB, inside, fabric(gain=2.0)) == pytest.approx(2 * 7 / 8 * 4 / 800 + 14e-6)
    across = Group(ranks=2, stride=8)
    assert all_reduce_s(4 * GB, across, fabric(gain=2.0)) == pytest.approx(2 / 2 * 4 / 40 + 2 * 5e-6)


def test_the_switch_helps_inside_the_nodes_of_a_larger_all_reduce() -> None:
    # 15/16 twice at 400 GB/s would take longer than 8/16 twice through 8 cards of 40; a tree of 2 nodes
    group, hops_s = Group(ranks=16, stride=1), 2 * 7e-6 + 2 * 1 * 5e-6
    assert all_reduce_s(4 * GB, group, fabric()) == pytest.approx(2 * 15 / 16 * 4 / 400 + hops_s)
    through_cards = 2 * 8 / 16 * 4 / (8 * 40)
    assert all_reduce_s(4 * GB, group, fabric(gain=2.0)) == pytest.approx(through_cards + hops_s)


def test_a_pipeline_fills_between_nodes_alone() -> None:
    # half of 4 MiB at 40 GB/s for a message of two buffers, all of it for a large one
    filling, buffer = replace(fabric(), buffer_bytes=4 * MIB), 4 * MIB / (40 * GB)
    pair, inside = Group(ranks=2, stride=8), Group(ranks=8, stride=1)
    for payload, share in ((8 * MIB, 0.5), (1000 * 8 * MIB, 1000 / 1001)):
        spent = all_reduce_s(payload, pair, filling) - all_reduce_s(payload, pair, fabric())
        assert spent == pytest.approx(share * buffer)
    assert all_reduce_s(GB, inside, filling) == all_reduce_s(GB, inside, fabric())


def test_nccl_fills_a_buffer_and_gloo_none() -> None:
    assert fabric_between(load_hardware("dgx-h100:2")).buffer_bytes == 4 * MIB
    assert fabric_between(load_hardware("cpu:2")).buffer_bytes == 0


def test_two_ranks_exchange_a_half() -> None:
    # the rest is hops: one in a ring or an exchange, two in an all-reduce
    pair = Group(ranks=2, stride=1)
    assert ring_s(4 * GB, pair, fabric()) == pytest.approx(1 / 2 * 4 / 400 + 1e-6)
    assert all_reduce_s(4 * GB, pair, fabric()) == pytest.approx(2 / 2 * 4 / 400 + 2e-6)
    assert all_to_all_s(4 * GB, pair, fabric()) == pytest.approx(1 / 2 * 4 / 400 + 1e-6)


def test_an_all_to_all_inside_a_domain_keeps_its_own_share() -> None:
    seconds = all_to_all_s(1.6 * GB, Group(ranks=8, stride=1), fabric())
    assert seconds == pytest.approx(7 / 8 * 1.6 / 400 + 1e-6)


def test_an_all_to_all_crosses_nodes_at_its_own_cards_rate() -> None:
    seconds = all_to_all_s(1.6 * GB, Group(ranks=16, stride=1), fabric())
    assert seconds == pytest.approx(8 / 16 * 1.6 / 40 + 1e-6 + 5e-6)


def test_copies_for_one_domain_cross_into_it_once() -> None:
    # 3 copies of each message over 2 nodes: the other node has one of 1 - (1/2)^3 of the messages
    seconds = all_to_all_s(1.6 * GB, Group(ranks=16, stride=1), fabric(), copies=3)
    assert seconds == pytest.approx(7 / 8 / 3 * 1.6 / 40 + 1e-6 + 5e-6)
    # inside, each other rank has one of 1 - (7/8)^3
    inside = all_to_all_s(1.6 * GB, Group(ranks=8, stride=1), fabric(), copies=3)
    assert inside == pytest.approx(7 * (1 - (7 / 8) ** 3) / 3 * 1.6 / 400 + 1e-6)


@pytest.mark.parametrize(("stride", "rate"), [(1, 400), (8, 40)])
def test_a_message_takes_the_link_between_its_ends(stride: int, rate: float) -> None:
    latency = 1e-6 if rate == 400 else 5e-6
    assert send_s(4 * GB, stride, fabric()) == pytest.approx(4 / rate + latency)


@pytest.mark.parametrize(
    ("ranks", "stride", "rate"),
    [(1, 8, 400), (8, 1, 400), (2, 4, 400), (16, 1, 40), (4, 4, 40), (2, 8, 40)],
)
def test_a_ring_waits_for_its_furthest_hop(ranks: int, stride: int, rate: float) -> None:
    latency = 1e-6 if rate == 400 else 5e-6
    found = ring_send_s(4 * GB, Group(ranks=ranks, stride=stride), fabric())
    assert found == pytest.approx(4 / rate + latency)


SHARES = {"share_of_two": 0.5, "share_of_four": 0.8, "share_of_eight": 0.9}
#: 10 us to start, 1 a hop, up to 20 for large ones, half of them at 1 MB; pairs reach half of the rate
CURVE = CollectiveCurve(start_s=10e-6, hop_s=1e-6, ramp_s=20e-6, ramp_bytes=1e6, **SHARES)


def curved(which: str, domain: int = 8) -> Fabric:
    """A fabric where one kind of collective has this curve, and the others take nothing but their bytes."""
    plain = CollectiveCurve(start_s=0.0, hop_s=0.0)
    curves = {"gather": plain, "reduce": plain, "exchange": plain} | {which: CURVE}
    made = fabric(domain)
    return replace(made, scale_up=replace(made.scale_up, curves=CollectiveCurves(**curves)))


def test_a_curve_adds_start_hops_and_ramp_to_the_bytes_of_a_ring() -> None:
    group = Group(ranks=8, stride=1)
    # 7/8 of 8 MB at nine tenths of 400 GB/s; of 7 MB 7/8 of the ramp
    expected = 7e6 / (0.9 * 400 * GB) + 10e-6 + 7e-6 + 7 / 8 * 20e-6
    assert ring_s(8e6, group, curved("gather")) == pytest.approx(expected)
    # units of parameters are large: the whole ramp
    whole = ring_of(group, curved("gather")).of(8e6)
    assert whole == pytest.approx(expected + 1 / 8 * 20e-6)
    pair = Group(ranks=2, stride=1)
    expected = 1e6 / (0.5 * 400 * GB) + 10e-6 + 1e-6 + 1 / 2 * 20e-6
    assert ring_s(2e6, pair, curved("gather")) == pytest.approx(expected)


def test_a_curve_counts_what_an_all_reduce_moves() -> None:
    # 2 x 3/4 of 4 MB is 6 MB
    expected = 6e6 / (0.8 * 400 * GB) + 10e-6 + 3e-6 + 6 / 7 * 20e-6
    assert all_reduce_s(4e6, Group(ranks=4, stride=1), curved("reduce")) == pytest.approx(expected)


def test_a_curve_counts_what_leaves_a_rank_in_an_exchange() -> None:
    expected = 3e6 / (0.8 * 400 * GB) + 10e-6 + 3e-6 + 3 / 4 * 20e-6
    assert all_to_all_s(4e6, Group(ranks=4, stride=1), curved("exchange")) == pytest.approx(expected)


def test_groups_between_powers_of_two_reach_what_lies_between() -> None:
    three, large = Group(ranks=3, stride=1), Group(ranks=16, stride=1)
    share = 0.5 + 0.3 * (np.log2(3) - 1)
    expected = 2e6 / (share * 400 * GB) + 10e-6 + 2e-6 + 2 / 3 * 20e-6
    assert ring_s(3e6, three, curved("gather")) == pytest.approx(expected)
    expected = 15e6 / (0.9 * 400 * GB) + 10e-6 + 15e-6 + 15 / 16 * 20e-6
    assert ring_s(16e6, large, curved("gather", domain=16)) == pytest.approx(expected)


def test_a_curve_holds_inside_domains_alone() -> None:
    # one member a node: nothing inside begins
    apart = Group(ranks=4, stride=8)
    assert ring_s(4 * GB, apart, curved("gather")) == pytest.approx(3 / 4 * 4 / 40 + 3 * 5e-6)
    assert all_reduce_s(4 * GB, apart, curved("reduce")) == pytest.approx(2 * 3 / 4 * 4 / 40 + 2 * 2 * 5e-6)
    assert all_to_all_s(4 * GB, apart, curved("exchange")) == pytest.approx(3 / 4 * 4 / 40 + 5e-6)


def test_a_group_of_one_costs_nothing() -> None:
    alone = Group(ranks=1, stride=1)
    assert ring_s(GB, alone, fabric()) == all_reduce_s(GB, alone, fabric()) == 0
    assert all_to_all_s(GB, alone, fabric()) == 0


@pytest.mark.parametrize("formula", [ring_s, all_reduce_s, all_to_all_s])
@pytest.mark.parametrize("stride", [1, 8], ids=["inside", "between"])
def test_a_step_reaches_its_share_of_the_bus_bandwidth(formula: Any, stride: int) -> None:
    group = Group(ranks=8, stride=stride)
    half = formula(400 * GB, group, fabric(efficiency=0.5))
    assert half == pytest.approx(2 * formula(400 * GB, group, fabric()), rel=1e-4)


@pytest.mark.parametrize("stride", [1, 8])
def test_a_message_reaches_the_same_share(stride: int) -> None:
    half = send_s(400 * GB, stride, fabric(efficiency=0.5))
    assert half == pytest.approx(2 * send_s(400 * GB, stride, fabric()), rel=1e-4)
    ring = Group(ranks=8, stride=stride)
    half = ring_send_s(400 * GB, ring, fabric(efficiency=0.5))
    assert half == pytest.approx(2 * ring_send_s(400 * GB, ring, fabric()), rel=1e-4)


@given(st.integers(0, 6), st.integers(0, 4), st.floats(1e3, 1e11))
def test_arrays_give_what_numbers_give(ranks: int, stride: int, payload: float) -> None:
    group = Group(ranks=2**ranks, stride=2**stride)
    many = Group(ranks=np.array([2**ranks] * 2), stride=np.array([2**stride] * 2))
    for formula in (ring_s, all_reduce_s, all_to_all_s):
        assert formula(np.array([payload] * 2), many, fabric())[1] == pytest.approx(
            float(formula(payload, group, fabric()))
        )
