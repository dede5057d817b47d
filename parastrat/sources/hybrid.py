"""Closed form of hybrids: layers of one part each, in an order of their own (arXiv:2504.03624)."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from parastrat.model import Block, Parameters, Split
from parastrat.plan import Recompute
from parastrat.remembered import remembered
from parastrat.saved import Activations, Saved
from parastrat.scans import Scans
from parastrat.sources.architecture import LayerKind
from parastrat.sources.attending import attention
from parastrat.sources.awaited import awaited
from parastrat.sources.ends import head
from parastrat.sources.feed_forward import computed_experts, feed_forward, mixture
from parastrat.sources.layers import (
    Part,
    Setting,
    activations,
    copies_input,
    gradients,
    joined,
    matmul,
    norm,
)
from parastrat.sources.state_space import divides_scans, scan_gradients, state_space

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMES = {
    LayerKind.SCAN: "Mamba-2 layer",
    LayerKind.ATTENTION: "attention layer",
    LayerKind.FEED_FORWARD: "feed-forward layer",
    LayerKind.EXPERTS: "expert layer",
}
#: queries, keys and values
_PROJECTIONS = 3


def hybrid_layers(setting: Setting) -> tuple[Block, ...]:
    """Return the layers in order, equal ones behind each other as one block.

    Where scans are whole on each tp rank, so is the residual stream: auto_parallelize divides sequences
    where every layer has something that is divided.
    """
    scans, pattern = scans_of(setting), setting.architecture.pattern
    # one of each kind: patterns have dozens of runs
    layers = {letter: _layer(setting, LayerKind(letter)) for letter in dict.fromkeys(pattern)}
    if scans is not None and not scans.divided:
        layers = {letter: _with_whole_stream(layer) for letter, layer in layers.items()}
    runs = [(letter, sum(1 for _ in run)) for letter, run in groupby(pattern)]
    blocks = {
        (letter, repeat): layers[letter] if repeat == 1 else replace(layers[letter], repeat=repeat)
        for letter, repeat in set(runs)
    }
    return tuple(blocks[run] for run in runs)


def _with_whole_stream(block: Block) -> Block:
    def whole(saved: Saved) -> Saved:
        if not saved.sequence:
            return saved
        return replace(saved, sequence=0, replicated=saved.replicated + saved.sequence)

    kept = {policy.value: whole(block.activations.under(policy)) for policy in Recompute}
    return replace(
        block,
        operators=tuple(
            replace(each, split=Split.REPLICATED) if each.split is Split.SEQUENCE else each
            for each in block.operators
        ),
        activations=Activations(**kept),
        working=whole(block.working),
        awaited=whole(block.awaited),
    )


def scans_of(setting: Setting) -> Scans | None:
    """Return what divides a model's scans."""
    s = setting.architecture.state_space
    return None if s is None else Scans(heads=s.heads, groups=s.groups, divided=divides_scans(setting))


def next_tokens(setting: Setting) -> tuple[Block, ...]:
    """Return the module that predicts further tokens, one block of the root, or nothing.

    It joins the last layer's output with the next token's embedding, each behind a norm of its own, and has
    a head on the model's table for each further token. Megatron-Core keeps it out of what runs in fp8
    (keep_mtp_spec_in_bf16), as it does the head.
    """
    own = setting.architecture.next_tokens
    if own is None:
        return ()
    a, tokens = setting.architecture, setting.tokens
    logits = head(setting)
    norms = [norm(setting, added=False) for _ in range(2)]
    table = Part(operators=logits.operators, saved=logits.activations.none)
    joining = Part(
        parameters=(
            Parameters(trainable=2 * a.hidden * a.hidden, split=Split.TENSOR),
            # the norm before the table
            *norm(setting, added=False).parameters,
        ),
        operators=(matmul(tokens, a.hidden, 2 * a.hidden, "n"),),
    )
    parts = [*norms, joining, *(_parts(setting)[LayerKind(letter)] for letter in own.pattern), table]
    part, width = joined(*parts), setting.stream * setting.tokens * a.hidden
    kept, routed = part.saved.times(own.depth), own.depth * own.pattern.count(LayerKind.EXPERTS)
    top_k = a.experts.top_k if a.experts else 0
    return (
        Block(
            name="next tokens",
            repeat=1,
            parameters=part.parameters,
            operators=tuple(replace(each, count=own.depth * each.count) for each in part.operators),
            # as of all that stands outside the layers, no policy computes it again
            activations=Activations(none=kept, attention=kept, selective=kept, full=kept),
            working=logits.working + Saved(sequence=width),
            boundary_bytes=(1 + own.depth) * width,
            tensor_parallel_collectives=own.depth * (len(own.pattern) + 1),
            tensor_parallel_bytes=setting.element * tokens * a.hidden,
            expert_parallel_bytes=routed * _exchanged(setting),
            experts_per_token=top_k if routed else 0,
            unit=False,
        ),
    )


def _layer(setting: Setting, kind: LayerKind) -> Block:
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    width = setting.stream * tokens * a.hidden
    part, mixed = _parts(setting)[kind], kind is LayerKind.EXPERTS
    return Block(
        name=_NAMES[kind],
        repeat=1,
        parameters=part.parameters,
        operators=part.operators,
        activations=activations(part, width),
        working=_working(setting, kind, width),
        awaited=awaited(setting, part, 1),
        copies_input=copies_input(setting),
        boundary_bytes=width,
        tensor_parallel_collectives=1,
        tensor_parallel_bytes=b * tokens * a.hidden,
        expert_parallel_bytes=_exchanged(setting) if mixed else 0,
        experts_per_token=a.experts.top_k if mixed and a.experts else 0,
        context_parallel_bytes=_over_context(setting, kind),
    )


@remembered
def _parts(setting: Setting) -> Mapping[LayerKind, Part]:
    """Return of each kind of layer a norm and what reads it; layers and further tokens have them alike."""
    a = setting.architecture
    letters = a.pattern + (a.next_tokens.pattern if a.next_tokens else "")
    made: dict[LayerKind, Callable[[], Part]] = {
        LayerKind.SCAN: lambda: state_space(setting),
        LayerKind.ATTENTION: lambda: attention(setting, causal=True),
        LayerKind.FEED_FORWARD: lambda: feed_forward(setting),
        LayerKind.EXPERTS: lambda: mixture(setting),
    }
    readers = {LayerKind.SCAN: 1, LayerKind.ATTENTION: 1 if a.fused_qkv else _PROJECTIONS}
    fed = 2 if a.gated else 1
    return {
        kind: joined(norm(setting, added=True, readers=readers.get(kind, fed)), made[kind]())
        for kind in map(LayerKind, dict.fromkeys(letters))
    }


def _working(setting: Setting, kind: LayerKind, width: int) -> Saved:
    a = setting.architecture
    if kind is LayerKind.SCAN:
        return scan_gradients(setting, width)
    mixed = kind is LayerKind.EXPERTS
    inner = {
        LayerKind.ATTENTION: (a.heads + a.kv_heads) * a.head_dim,
        LayerKind.FEED_FORWARD: a.ffn,
    }.get(kind, a.experts.ffn * computed_experts(setting) if a.experts else 0)
    return gradients(setting, inner * setting.tokens, width, mixed=mixed)


def _exchanged(setting: Setting) -> float:
    """Return the bytes that tokens' copies for the experts of one layer have."""
    a = setting.architecture
    if a.experts is None:
        return 0
    return a.experts.top_k * setting.element * setting.tokens * (a.experts.latent or a.hidden)


def _over_context(setting: Setting, kind: LayerKind) -> float:
    """Return what context parallelism moves, as bytes that two ranks would gather.

    Attention gathers keys and values. Of scans each rank takes whole sequences of a part of the heads, and
    gives them back (Megatron-Core, mamba_context_parallel.py @d98e8a6): two exchanges, of which a rank
    sends (cp - 1) / cp^2 each. That is gathering half as much with two ranks, and less with more.
    """
    a, s = setting.architecture, setting.architecture.state_space
    if kind is LayerKind.ATTENTION:
        return 2 * setting.element * setting.tokens * a.kv_heads * a.head_dim
    if kind is LayerKind.SCAN and s is not None:
        return setting.element * setting.tokens * (s.projected + s.width) / 2
    return 0
