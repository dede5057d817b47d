"""Feed-forwards and mixtures, counted by hand: width 8, inner width 20, 10 tokens, 2 bytes an element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import SMALL

from parastrat.model import OperatorKind, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.architecture import Experts
from parastrat.sources.feed_forward import feed_forward, mixture
from parastrat.sources.layers import Part, Setting, divides_tokens, gradients, takes_stretch
from parastrat.stack import Kernels

T, FFN = 10, 20
PLAIN = {"gated": False}


def setting(kernels: Kernels = Kernels.EAGER, **changes: Any) -> Setting:
    return Setting(architecture=replace(SMALL, **changes), tokens=T, element=2, kernels=kernels)


def products(part: Part) -> list[tuple[int, int, int, str, int]]:
    return [(o.m, o.n, o.k, o.split_side, o.count) for o in part.operators if o.n]


def moved(part: Part) -> list[float]:
    return [o.bytes for o in part.operators if o.kind is OperatorKind.ELEMENTWISE]


@pytest.mark.parametrize(
    ("changes", "tensor", "replicated"),
    [
        ({}, 8 * 2 * FFN + FFN * 8, ()),
        (PLAIN, 8 * FFN + FFN * 8, ()),
        ({"ffn_bias": True}, 8 * 2 * FFN + FFN * 8 + 2 * FFN, (8,)),
        ({"ffn_bias": True, **PLAIN}, 8 * FFN + FFN * 8 + FFN, (8,)),
    ],
)
def test_parameters(changes: dict[str, Any], tensor: int, replicated: tuple[int, ...]) -> None:
    assert feed_forward(setting(**changes)).parameters == (
        Parameters(trainable=tensor, split=Split.TENSOR),
        *(Parameters(trainable=bias) for bias in replicated),
    )


def test_products_and_traffic() -> None:
    gated, plain = feed_forward(setting()), feed_forward(setting(**PLAIN))
    assert products(gated) == [(T, FFN, 8, "n", 2), (T, 8, FFN, "k", 1)]
    assert products(plain) == [(T, FFN, 8, "n", 1), (T, 8, FFN, "k", 1)]
    # the activation reads and writes; a gate's product reads two and writes one more
    assert (moved(gated), moved(plain)) == ([2 * 5 * FFN * T], [2 * 2 * FFN * T])
    assert products(feed_forward(setting(), 6)) == [(T, 6, 8, "n", 2), (T, 8, 6, "k", 1)]


@pytest.mark.parametrize(
    ("kernels", "changes", "tensors"),
    [
        # gate, its activation, up, their product; or the activation's input and output
        (Kernels.EAGER, {}, 4),
        (Kernels.EAGER, PLAIN, 2),
        # the tanh GELU keeps its input, half of it, the tanh, and one plus it, beside the output
        (Kernels.EAGER, {"composite_activation": True, **PLAIN}, 1 + 4),
        # the input of what is computed again, and the next product's
        (Kernels.COMPILED, {}, 3),
        (Kernels.COMPILED, PLAIN, 2),
        (Kernels.FUSED, {}, 3),
        (Kernels.FUSED, PLAIN, 2),
        # a ReLU's output tells its own gradient
        (Kernels.EAGER, {"rectified": True, **PLAIN}, 1),
        (Kernels.FUSED, {"rectified": True, **PLAIN}, 1),
    ],
)
def test_what_is_kept(kernels: Kernels, changes: dict[str, Any], tensors: int) -> None:
    assert feed_forward(setting(kernels, **changes)).saved == Saved(tensor=2 * tensors * FFN * T)


def test_what_products_give_in_their_order() -> None:
    first, last = Saved(tensor=2 * FFN * T), Saved(replicated=2 * 8 * T)
    assert feed_forward(setting()).outputs == (first, first, last)
    assert feed_forward(setting(**PLAIN)).outputs == (first, last)
    assert feed_forward(setting(fused_qkv=True)).outputs == (Saved(tensor=2 * 2 * FFN * T), last)
    # nothing in backward reads the last one's output, and a compiler leaves it out
    assert feed_forward(setting(Kernels.COMPILED)).outputs == (first, first, Saved())


@pytest.mark.parametrize(("changes", "inner"), [({}, 2), (PLAIN, 1)])
def test_of_every_product_backward_reads_all_but_the_last(changes: dict[str, Any], inner: int) -> None:
    assert feed_forward(setting(**changes)).products == Saved(tensor=2 * inner * FFN * T)
    # of a mixture the router's; no list names grouped ones
    assert mixed().products == Saved(sequence=2 * 6 * T)


def mixed(kernels: Kernels = Kernels.EAGER, shared: int = 0, **changes: Any) -> Part:
    """Return 6 experts of inner width 5, 2 for each token."""
    experts = Experts(count=6, top_k=2, ffn=5, shared_ffn=shared)
    return mixture(setting(kernels, experts=experts, **changes))


ROUTED = 2 * T


@pytest.mark.parametrize(("changes", "inner"), [({}, 2 * 5), (PLAIN, 5)])
def test_a_mixtures_parameters_and_products(changes: dict[str, Any], inner: int) -> None:
    made = mixed(**changes)
    assert made.parameters == (
        Parameters(trainable=8 * 6),
        Parameters(trainable=6 * (8 * inner + 5 * 8), split=Split.EXPERT, cast=False),
    )
    assert products(made) == [(T, 6, 8, "", 1), (ROUTED, inner, 8, "n", 1), (ROUTED, 8, 5, "k", 1)]
    router, into, out_of = (operator for operator in made.operators if operator.n)
    assert (router.kind, into.kind, out_of.kind) == (
        OperatorKind.MATMUL,
        OperatorKind.GROUPED_MATMUL,
        OperatorKind.GROUPED_MATMUL,
    )
    assert (into.flops, out_of.flops) == (2 * ROUTED * inner * 8, 2 * ROUTED * 8 * 5)
    assert (into.bytes, into.split, out_of.split) == (0, Split.EXPERT, Split.EXPERT)


def test_biases_of_experts_and_of_their_router() -> None:
    plain = Experts(count=6, top_k=2, ffn=5)
    weights = 8 * (2 * 5 + 5)
    cases = {
        plain: (8 * 6, 6 * weights),
        # of the gate and the inner width, and of the output
        replace(plain, bias=True): (8 * 6, 6 * (weights + 2 * 5 + 8)),
        replace(plain, router_bias=True): (8 * 6 + 6, 6 * weights),
        replace(plain, router_bias=True, shared_gate=True): (8 * 6 + 6 + 8, 6 * weights),
    }
    for experts, (router, own) in cases.items():
        assert mixture(setting(experts=experts)).parameters == (
            Parameters(trainable=router),
            Parameters(trainable=own, split=Split.EXPERT, cast=False),
        )


def test_a_mixtures_traffic() -> None:
    # the experts' gates, and tokens read and written on the way in and on the way out
    assert moved(mixed()) == [2 * ROUTED * (5 * 5 + 4 * 8)]


def test_what_a_mixture_keeps() -> None:
    # the router's fp32 logits and probabilities; tokens in expert order before and after; inner tensors
    assert mixed().saved == Saved(sequence=4 * 2 * 6 * T, expert=ROUTED * 2 * (2 * 8 + 4 * 5))
    assert mixed(Kernels.COMPILED).saved.expert == ROUTED * 2 * (2 * 8 + 3 * 5)
    # of products only the router's is none of a group: those are all computed again
    assert (mixed().selective, mixed().outputs) == (Saved(), (Saved(sequence=2 * 6 * T),))


def test_experts_that_see_every_token_have_products_that_a_policy_may_keep() -> None:
    experts = Experts(count=6, top_k=2, ffn=5, every_token=True)
    # in batches, one of all experts: gates and inner width, then what goes back
    rows = 2 * 6 * T
    assert mixture(setting(experts=experts)).outputs == (
        Saved(sequence=2 * 6 * T),
        Saved(expert=rows * 2 * 5),
        Saved(expert=rows * 8),
    )
    grouped = mixture(setting(Kernels.COMPILED, experts=experts))
    assert grouped.outputs == (Saved(sequence=2 * 6 * T),)


def test_shared_experts_are_a_feed_forward_beside() -> None:
    alone, dense, both = mixed(), feed_forward(setting(), 7), mixed(shared=7)
    assert both.parameters == alone.parameters + dense.parameters
    assert both.operators == alone.operators + dense.operators
    assert both.saved == alone.saved + dense.saved


def test_a_gate_of_shared_experts_keeps_what_they_give() -> None:
    experts = Experts(count=6, top_k=2, ffn=5, shared_ffn=7)
    plain, gated = (
        mixture(setting(experts=replace(experts, shared_gate=weighed))) for weighed in (False, True)
    )
    gate, given = Saved(sequence=2 * T), Saved(sequence=2 * 8 * T)
    assert gated.saved == plain.saved + gate + given
    # a policy that keeps every second product meets theirs first, then the router's and the gate's
    router, *shared = plain.outputs
    assert gated.outputs == (*shared, router, gate)


LATENT = Experts(count=6, top_k=2, ffn=5, latent=3)


def test_experts_of_a_latent_width_read_and_give_that() -> None:
    made = mixture(setting(experts=LATENT, **PLAIN))
    assert made.parameters == (
        Parameters(trainable=8 * 6),
        Parameters(trainable=6 * (3 * 5 + 5 * 3), split=Split.EXPERT, cast=False),
        Parameters(trainable=2 * 8 * 3),
    )
    assert products(made) == [
        (T, 6, 8, "", 1),
        (ROUTED, 5, 3, "n", 1),
        (ROUTED, 3, 5, "k", 1),
        (T, 3, 8, "", 1),
        (T, 8, 3, "", 1),
    ]
    assert [o.split for o in made.operators if o.m == T] == [Split.REPLICATED, *[Split.SEQUENCE] * 2]
    assert moved(made) == [2 * ROUTED * (5 * 5 + 4 * 3)]
    # what experts are given and give, and what each projection gave
    assert made.saved == Saved(sequence=(4 * 2 * 6 + 2 * 2 * 3) * T, expert=ROUTED * 2 * (2 * 3 + 2 * 5))
    biased = mixture(setting(experts=replace(LATENT, bias=True), **PLAIN))
    assert biased.parameters[1].trainable == 6 * (3 * 5 + 5 * 3 + 5 + 3)


@pytest.mark.parametrize(
    ("kernels", "changes", "copied"),
    [
        (Kernels.EAGER, {}, 4 * 8),
        (Kernels.FUSED, {}, 0),
        (Kernels.COMPILED, {}, 0),
        # the stream is in fp32 itself
        (Kernels.EAGER, {"fp32_stream": True}, 0),
    ],
)
def test_a_router_in_fp32_reads_a_copy_of_a_short_stream(
    kernels: Kernels, changes: dict[str, Any], copied: int
) -> None:
    plain = Experts(count=6, top_k=2, ffn=5)
    own = (
        mixture(setting(kernels, experts=e, **changes)) for e in (plain, replace(plain, fp32_router=True))
    )
    usual, copying = (part.saved.sequence for part in own)
    assert copying - usual == copied * T


def test_a_mixture_needs_experts() -> None:
    with pytest.raises(ValueError, match="no experts"):
        mixture(setting())


def test_fused_kernels_add_the_last_bias_of_experts_apart() -> None:
    """64 bytes for each of two copies of ten tokens eight wide; traffic counts thrice with backward."""

    def of(*, bias: bool, kernels: Kernels) -> float:
        experts = Experts(count=4, top_k=2, ffn=FFN, bias=bias)
        return sum(moved(mixture(setting(kernels, experts=experts))))

    apart = of(bias=True, kernels=Kernels.FUSED) - of(bias=False, kernels=Kernels.FUSED)
    assert 3 * apart == pytest.approx(64 * 2 * T * 8)
    assert of(bias=True, kernels=Kernels.EAGER) == of(bias=False, kernels=Kernels.EAGER)


def test_experts_are_given_stretches() -> None:
    experts = Experts(count=4, top_k=2, ffn=FFN)
    assert divides_tokens(setting(experts=experts))
    assert not divides_tokens(setting())
    assert not divides_tokens(setting(Kernels.FUSED, experts=experts))
    assert divides_tokens(setting(experts=replace(experts, shared_ffn=FFN)))
    assert divides_tokens(setting(experts=replace(experts, every_token=True)))
    assert divides_tokens(setting(experts=experts, sinks=True))


def test_what_experts_alone_read_is_not_gathered() -> None:
    experts = Experts(count=4, top_k=2, ffn=FFN)
    assert takes_stretch(setting(experts=experts))
    # shared ones are divided, and read the whole sequence; so does a router in torchtitan
    assert not takes_stretch(setting(experts=replace(experts, shared_ffn=FFN)))
    assert not takes_stretch(setting(Kernels.COMPILED, experts=experts))
    routed, dense = (
        gradients(setting(experts=experts), 0, 2 * 8 * T, mixed=mixed) for mixed in (True, False)
    )
    assert dense == Saved(sequence=2 * 2 * 8 * T - 2 * 2 * 8 * T, replicated=2 * 2 * 8 * T)
    assert routed == Saved(sequence=2 * 2 * 8 * T)
