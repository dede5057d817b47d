"""Mamba-2 layers by hand: width 8, 10 tokens, 4 heads of 3 in 2 groups, states of 5, chunks of 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import small

from parastrat.model import OperatorKind, Split
from parastrat.saved import Activations, Saved
from parastrat.sources.architecture import LayerKind, StateSpace
from parastrat.sources.hybrid import hybrid_layers, scans_of
from parastrat.sources.layers import Part, Setting
from parastrat.sources.state_space import scan_gradients, state_space
from parastrat.stack import Kernels

SPACE = StateSpace(heads=4, head_dim=3, state=5, groups=2, chunk=2)
SMALL = replace(small.SMALL, layers=4, gated=False, rotary=False, pattern="MM*-", state_space=SPACE)
T = 10
#: of the heads' inputs, of those with B and C, and of the gate and steps too
WIDTH, CONVOLVED, PROJECTED = 12, 32, 48


def setting(kernels: Kernels = Kernels.FUSED, **changes: Any) -> Setting:
    return Setting(
        architecture=replace(SMALL, state_space=replace(SPACE, **changes)),
        tokens=T,
        element=2,
        kernels=kernels,
    )


def count(part: Part) -> int:
    return sum(group.count for group in part.parameters)


def test_widths() -> None:
    assert (SPACE.width, SPACE.convolved, SPACE.projected) == (WIDTH, CONVOLVED, PROJECTED)


def test_parameters() -> None:
    # projections; four taps and a bias a channel; decay, bias of steps and D a head; the gated norm
    projections = 8 * PROJECTED + WIDTH * 8
    small = CONVOLVED * 5 + 3 * 4 + WIDTH
    assert count(state_space(setting())) == projections + small
    assert count(state_space(setting(conv_bias=False))) == projections + small - CONVOLVED
    assert count(state_space(setting(bias=True))) == projections + small + PROJECTED + 8
    assert count(state_space(setting(window=3))) == projections + small - CONVOLVED


def test_products() -> None:
    own = [(o.m, o.n, o.k, o.split_side) for o in state_space(setting()).operators if o.n]
    assert own == [(T, PROJECTED, 8, "n"), (T, 8, WIDTH, "k")]


def test_the_convolution_and_the_norm_read_and_write() -> None:
    own = [
        (o.bytes, o.flops) for o in state_space(setting()).operators if o.kind is OperatorKind.ELEMENTWISE
    ]
    # four taps multiply and add
    assert own == [(2 * 2 * WIDTH * T, 0), (2 * 2 * CONVOLVED * T, 2 * 4 * CONVOLVED * T)]


def test_the_scan_is_five_kernels() -> None:
    (scan,) = (o for o in state_space(setting()).operators if o.kind is OperatorKind.SCAN)
    assert scan.count == 5


def test_the_scan_multiplies_inside_of_chunks_and_between() -> None:
    (scan,) = (o for o in state_space(setting()).operators if o.kind is OperatorKind.SCAN)
    # a token sees half of its chunk: C B^T of each group, and its product with the inputs; a state of 5 for
    # each input is made, and read
    inside = 2 * 1 * (2 * 5 + WIDTH)
    between = 2 * 2 * 5 * WIDTH
    assert scan.count * scan.flops == pytest.approx(T * (inside + between))


def test_the_scan_moves_inputs_states_and_outputs() -> None:
    (scan,) = (o for o in state_space(setting()).operators if o.kind is OperatorKind.SCAN)
    states = WIDTH * 5 / 2
    tensors = 2 * 5 * WIDTH + 2 * 2 * (2 * 2 * 5)
    passed = (4 + 4 + 2 + 2) * states
    products = (4 + 4) * 2 * 2
    steps = (2 + 4 * 4) * 4
    assert scan.count * scan.bytes == pytest.approx(T * (tensors + passed + products + steps))
    assert not scan.weighted


def test_longer_chunks_pass_fewer_states() -> None:
    def moved(chunk: int) -> float:
        return sum(o.bytes for o in state_space(setting(chunk=chunk, groups=1)).operators)

    assert moved(2) > moved(4) > moved(8)


def test_what_is_kept() -> None:
    fused, eager = state_space(setting()), state_space(setting(Kernels.EAGER))
    statistics = 4 * 2
    # the norm's input and the last product's beside what the function keeps
    assert fused.saved == Saved(tensor=T * (2 * (PROJECTED + WIDTH) + 2 * 2 * WIDTH + statistics))
    assert eager.saved == Saved(replicated=T * (2 * (PROJECTED + WIDTH) + statistics))
    assert fused.outputs[0] == Saved(tensor=2 * PROJECTED * T)


def test_megatron_alone_divides_it() -> None:
    assert {group.split for group in state_space(setting()).parameters} == {Split.TENSOR}
    whole = state_space(setting(Kernels.EAGER))
    assert {group.split for group in whole.parameters} == {Split.REPLICATED}
    assert {operator.split for operator in whole.operators} == {Split.REPLICATED}
    assert (scans_of(setting()), scans_of(setting(Kernels.EAGER))) == (
        replace(scans_of(setting()), divided=True),
        replace(scans_of(setting()), divided=False),
    )
    assert scans_of(replace(setting(), architecture=replace(SMALL, state_space=None))) is None


def test_backward_makes_states_and_their_gradients() -> None:
    states = WIDTH * 5 / 2
    made = 12 * states + 8 * 2 * 2 + 2 * (PROJECTED + CONVOLVED + 2 * WIDTH)
    assert scan_gradients(setting(), 7) == Saved(tensor=T * made, sequence=14)
    again = made + 2 * WIDTH
    assert scan_gradients(setting(Kernels.EAGER), 7) == Saved(replicated=T * again, sequence=14)


def test_layers_are_runs_of_the_pattern() -> None:
    blocks = hybrid_layers(setting())
    assert [(block.name, block.repeat) for block in blocks] == [
        ("Mamba-2 layer", 2),
        ("attention layer", 1),
        ("feed-forward layer", 1),
    ]
    assert [block.tensor_parallel_collectives for block in blocks] == [1, 1, 1]
    assert all(block.boundary_bytes == 2 * 8 * T for block in blocks)


def test_no_policy_but_full_and_selective_spares_a_scan() -> None:
    block = hybrid_layers(setting())[0]
    own: Activations = block.activations
    assert own.attention == own.none
    assert own.full.total < own.selective.total < own.none.total


def test_context_parallelism_exchanges_what_scans_read_and_give() -> None:
    scans, attention, fed = hybrid_layers(setting())
    assert scans.context_parallel_bytes == 2 * T * (PROJECTED + WIDTH) / 2
    assert attention.context_parallel_bytes == 2 * 2 * T * 2 * 3
    assert fed.context_parallel_bytes == 0


def test_a_part_without_sizes_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no state-space layers"):
        state_space(replace(setting(), architecture=replace(SMALL, state_space=None)))


def test_letters_are_nvidias() -> None:
    assert "".join(LayerKind) == "M*-E"
