"""Closed form of dense feed-forward layers and of mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.model import Operator, OperatorKind, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.layers import FP32_BYTES, Part, Setting, elementwise, joined, matmul, summands
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture, Experts

#: intermediates of the tanh GELU as a chain of kernels: its input, half of it, the tanh, and one plus it
_COMPOSITE = 4
#: gpt-oss: both halves, the gate clamped, its sigmoid, their product, one plus the other half, and all
_CLAMPED = 7


def feed_forward(setting: Setting, width: int | None = None) -> Part:
    """Return a dense feed-forward of the architecture's width, or of another."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    ffn = width or a.ffn
    inner = 2 * ffn if a.gated else ffn
    groups = [
        Parameters(
            trainable=a.hidden * inner + ffn * a.hidden + (inner if a.ffn_bias else 0), split=Split.TENSOR
        )
    ]
    if a.ffn_bias:
        groups.append(Parameters(trainable=a.hidden))
    dropped = drops_within(setting) and width is None
    # of a ReLU whose output is dropped out backward reads that too; else the last product reads the other
    count = _kept_tensors(a, setting.kernels) + (dropped and a.rectified and setting.kernels.eager)
    first = (inner,) if a.fuses_gate else (ffn,) * (inner // ffn)
    return Part(
        parameters=tuple(groups),
        operators=(
            matmul(tokens, ffn, a.hidden, "n", count=2 if a.gated else 1),
            matmul(tokens, a.hidden, ffn, "k"),
            elementwise(b * (5 if a.gated else 2) * ffn * tokens, Split.TENSOR),
        ),
        # with a byte of a mask
        saved=Saved(tensor=(b * count + dropped) * ffn * tokens),
        outputs=(*(Saved(tensor=b * each * tokens) for each in first), summands(setting)),
        products=Saved(tensor=b * inner * tokens),
    )


def drops_within(setting: Setting) -> bool:
    """Return whether dropout stands between a feed-forward's activation and its last product."""
    a = setting.architecture
    return a.dropout and a.inner_dropout and not setting.kernels.fused


def largest_weight(setting: Setting, *, mixed: bool) -> tuple[Parameters, Saved]:
    """Return the feed-forward's largest weight, and what lies beside its gradient, less all it keeps.

    Gate and up are one weight where they are one product, and in transformers' mixtures: its gradient is
    made of theirs, when what stands behind them is gone.
    """
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    if mixed and a.experts is not None:
        experts, routed = a.experts, tokens * computed_experts(setting)
        inner, tensors = 2 if a.gated else 1, _kept_of_experts(a, experts, setting.kernels)
        element = b if experts.every_token else setting.stream
        return (
            Parameters(trainable=experts.count * inner * experts.ffn * a.hidden, split=Split.EXPERT),
            Saved(expert=(inner - tensors) * element * routed * experts.ffn),
        )
    if a.fuses_gate:
        tensors = _kept_tensors(a, setting.kernels)
        return (
            Parameters(trainable=2 * a.ffn * a.hidden, split=Split.TENSOR),
            Saved(tensor=(2 - tensors) * b * tokens * a.ffn),
        )
    return Parameters(trainable=a.ffn * a.hidden, split=Split.TENSOR), Saved()


def _kept_tensors(a: Architecture, kernels: Kernels) -> int:
    """Return how many tensors of the inner width backward reads.

    Eager: gate, its activation, up, their product; or input and output of the activation. Where kernels are
    fused, the activation alone is computed again.
    """
    if a.rectified:
        return 1
    if kernels.eager:
        return 4 if a.gated else 1 + (_COMPOSITE if a.composite_activation else 1)
    return 3 if a.gated else 2


def _kept_of_experts(a: Architecture, experts: Experts, kernels: Kernels) -> int:
    """Return how many tensors of the experts' width backward reads."""
    if experts.composite_activation and kernels.eager:
        return _CLAMPED
    return _kept_tensors(a, kernels)


def mixture(setting: Setting) -> Part:
    """Return a router, the experts on the tokens routed to them, and shared experts."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    experts = a.experts
    if experts is None:
        raise ValueError("the architecture has no experts")
    routed = tokens * computed_experts(setting)
    useful = experts.top_k / computed_experts(setting)
    inner = (2 if a.gated else 1) * experts.ffn
    width = experts.latent or a.hidden
    weights = width * (inner + experts.ffn) + (inner + width if experts.bias else 0)
    tensors = _kept_of_experts(a, experts, setting.kernels)
    # tokens in expert order before and after, and the experts' inner tensors; autocast knows no grouped
    # product, whose tensors stay in the stream's format
    element = b if experts.every_token else setting.stream
    kept = routed * (2 * element * width + tensors * element * experts.ffn)
    if experts.every_token:
        kept += routed * (setting.stream - b) * width
    copied = FP32_BYTES * a.hidden if experts.fp32_router and _copies(setting) else 0
    router = Part(
        parameters=(Parameters(trainable=_router_parameters(a.hidden, experts)),),
        operators=(matmul(tokens, experts.count, a.hidden, ""),),
        saved=Saved(sequence=(4 * 2 * experts.count + copied) * tokens),
        outputs=(Saved(sequence=b * experts.count * tokens),),
        products=Saved(sequence=b * experts.count * tokens),
    )
    own = Part(
        parameters=(
            Parameters(trainable=experts.count * weights, split=Split.EXPERT, cast=experts.every_token),
        ),
        operators=(
            replace(_grouped(routed, inner, width, "n"), useful=useful),
            replace(_grouped(routed, width, experts.ffn, "k"), useful=useful),
            elementwise(
                (b * (5 * experts.ffn + 4 * width) + _bias_bytes(setting) * width) * routed, Split.EXPERT
            ),
        ),
        saved=Saved(expert=kept),
        outputs=_batched_outputs(setting, inner, width),
    )
    parts = [router, own, *((_latent(setting, experts.latent),) if experts.latent else ())]
    shared = _shared_experts(setting, experts)
    # Qwen2-MoE's run before the router, and their gate behind all
    first = experts.shared_gate or experts.shared_first
    parts = [*shared[:1], *parts, *shared[1:]] if first else [*parts, *shared]
    return joined(*parts)


def _shared_experts(setting: Setting, experts: Experts) -> tuple[Part, ...]:
    """Return the experts that all tokens run through, and the gate that weighs what they give, if any.

    The product of both keeps both. The gate's weights are counted with the router's.
    """
    if not experts.shared_ffn:
        return ()
    own, rows = feed_forward(setting, experts.shared_ffn), setting.element * setting.tokens
    if not experts.shared_gate:
        return (own,)
    gate = Part(
        saved=Saved(sequence=rows * (setting.architecture.hidden + 1)),
        outputs=(Saved(sequence=rows),),
        products=Saved(sequence=rows),
    )
    return own, gate


def _batched_outputs(setting: Setting, inner: int, width: int) -> tuple[Saved, ...]:
    """Return what the experts' products give where they are batched ones, as a policy may keep them.

    Grouped products are on no policy's list; those of transformers' Llama 4 are ``bmm``.
    """
    experts = setting.architecture.experts
    if experts is None or not (experts.every_token and setting.kernels.eager):
        return ()
    rows = setting.element * setting.tokens * experts.count
    return Saved(expert=rows * inner), Saved(expert=rows * width)


def _bias_bytes(setting: Setting) -> float:
    """Return what scaling and adding the last bias moves for each element that experts give back.

    Megatron-Core does it expert by expert (TEGroupedMLP._apply_bias, experts.py @d98e8a6): the bias times
    probabilities in fp32, the sum and its concatenation in fp32, and a short copy. Forward 28 bytes and
    backward 36, of which a third counts: traffic counts twice more for backward.
    """
    experts = setting.architecture.experts
    return 64 / 3 if experts is not None and experts.bias and setting.kernels.fused else 0.0


def _latent(setting: Setting, width: int) -> Part:
    """Return the projections to the width of the experts and back, whole on every tp rank.

    Source: NVIDIA, arXiv:2601.18089 (LatentMoE); Megatron-Core duplicates them (moe_layer.py @d98e8a6).
    """
    hidden, tokens = setting.architecture.hidden, setting.tokens
    return Part(
        parameters=(Parameters(trainable=2 * hidden * width),),
        operators=tuple(
            replace(matmul(tokens, n, k, ""), split=Split.SEQUENCE)
            for n, k in ((width, hidden), (hidden, width))
        ),
        # what the experts are given of, and what they gave back
        saved=Saved(sequence=2 * setting.element * width * tokens),
        products=Saved(sequence=setting.element * width * tokens),
    )


def _copies(setting: Setting) -> bool:
    """Return whether a tensor in fp32 is a copy: of a short one, where nothing is fused."""
    return setting.kernels.eager and setting.stream < FP32_BYTES


def computed_experts(setting: Setting) -> int:
    """Return how many experts run on each token; what transformers' Llama 4 computes of others is lost."""
    experts = setting.architecture.experts
    if experts is None:
        return 0
    return experts.count if experts.every_token and setting.kernels.eager else experts.top_k


def _router_parameters(hidden: int, experts: Experts) -> int:
    return (
        hidden * experts.count
        + (experts.count if experts.router_bias else 0)
        + (hidden if experts.shared_gate else 0)
    )


def _grouped(rows: int, n: int, k: int, side: str) -> Operator:
    return Operator(
        kind=OperatorKind.GROUPED_MATMUL,
        flops=2 * rows * n * k,
        bytes=0,
        m=rows,
        n=n,
        k=k,
        split=Split.EXPERT,
        split_side=side,
    )
