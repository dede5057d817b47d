"""Closed form of whole transformers: an architecture at one sequence length as a chain of blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from parastrat.errors import ModelError
from parastrat.model import Block, Family, ModelSpec, Split
from parastrat.sources.attending import by_masks
from parastrat.sources.casts import with_autocast
from parastrat.sources.ends import classifier, embedding, head, patches
from parastrat.sources.feed_forward import computed_experts
from parastrat.sources.hybrid import hybrid_layers, next_tokens, scans_of
from parastrat.sources.layers import Setting, divides_tokens
from parastrat.sources.one_layer import layer
from parastrat.sources.two_stacks import encoder_decoder
from parastrat.stack import Kernels
from parastrat.stage_load import StageLoad
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture, Experts

#: of a model; the deepest published has 1,000 (DeepNet, arXiv:2203.00555)
_MOST_LAYERS = 10_000


def transformer(
    architecture: Architecture,
    sequence_length: int | None,
    precision: Precision,
    kernels: Kernels,
    ref: str,
) -> ModelSpec:
    """Return the model at a sequence length, in tokens; images bring their own.

    Raises:
        ModelError: more layers than any model has.
    """
    layers = architecture.layers + architecture.encoder_layers
    if layers > _MOST_LAYERS:
        raise ModelError(f"{layers:,} layers are no model's", hint=f"write at most {_MOST_LAYERS:,}")
    image = architecture.image
    tokens = image.tokens if image else (sequence_length or 1)
    setting = Setting(
        architecture=architecture, tokens=tokens, element=precision.compute_bytes, kernels=kernels
    )
    blocks = with_autocast(lambda cast: _chain(replace(setting, autocast=cast)), precision, kernels)
    total, active = _counts(blocks, architecture)
    causal = architecture.family in (Family.DECODER, Family.ENCODER_DECODER)
    return ModelSpec(
        ref=ref,
        name=architecture.name,
        family=architecture.family,
        blocks=blocks,
        parameters=total,
        active_parameters=active,
        sequence_length=None if image else sequence_length,
        precision=precision,
        causal=causal,
        layers=layers,
        stacks=2 if architecture.family is Family.ENCODER_DECODER else 1,
        positions=image.tokens if image else None,
        hidden=architecture.hidden,
        heads=architecture.heads or None,
        kv_heads=architecture.kv_heads or None,
        divisible=architecture.head_groups,
        vocab=None if image else architecture.vocab,
        experts=architecture.experts.count if architecture.experts else None,
        max_sequence_length=architecture.max_sequence_length,
        changing_buffers=False,
        routed=architecture.experts is not None,
        drops=architecture.dropout,
        scans=scans_of(setting),
        divides_tokens=divides_tokens(setting),
        divides_sequences=architecture.scores is None and not architecture.own_positions,
        stage_load=StageLoad.LAYERS if kernels.fused else StageLoad.FLOPS,
        source=architecture.source,
        caveats=_caveats(setting),
    )


def _chain(setting: Setting) -> tuple[Block, ...]:
    if setting.architecture.family is Family.ENCODER_DECODER:
        return encoder_decoder(setting)
    if setting.architecture.pattern:
        return (embedding(setting), *hybrid_layers(setting), *next_tokens(setting), head(setting))
    if setting.architecture.image:
        layers = layer(setting, setting.architecture.layers, causal=False)
        return patches(setting), layers, classifier(setting)
    return _single_stack(setting)


def _caveats(setting: Setting) -> tuple[str, ...]:
    a, found = setting.architecture, []
    if a.audio:
        found.append(f"every sample is heard as {a.audio.frames} frames; the sequence is the decoder's")
    elif a.family is Family.ENCODER_DECODER:
        found.append("the decoder's sequence is taken as long as the encoder's")
    if a.state_space:
        found.append(
            "Mamba-2 layers are taken to run in the kernels of mamba-ssm and causal-conv1d; without them, "
            "as in dry runs on a host that lacks them, transformers takes longer and keeps more"
        )
    if a.experts:
        found.append("tokens are taken to spread evenly over the experts")
        if a.experts.every_token:
            found.append(_who_computes(computed_experts(setting), a.experts))
    return tuple(found)


def _who_computes(computed: int, experts: Experts) -> str:
    """Return whose experts are meant of a model that transformers runs otherwise than trainers do."""
    if computed == experts.count:
        return (
            f"each token runs through all {experts.count} experts, as in transformers, and {experts.top_k} "
            "counts; in torchtitan and Megatron-Core through those routed to alone (--stack megatron-core)"
        )
    return (
        f"each token runs through {experts.top_k} of {experts.count} experts, as in torchtitan and "
        "Megatron-Core; in transformers through all of them, compiled or not (--stack torch)"
    )


def _counts(blocks: tuple[Block, ...], a: Architecture) -> tuple[int, int]:
    """Return all parameters, ties once, and those that one token uses."""
    ties: dict[str, int] = {}
    total = unused = 0
    for block in blocks:
        for group in block.parameters:
            if group.tie_group is not None:
                ties[group.tie_group] = group.count
                continue
            total += group.count * block.repeat
            if group.split is Split.EXPERT and a.experts:
                idle = 1 - a.experts.top_k / a.experts.count
                unused += round(group.count * block.repeat * idle)
    total += sum(ties.values())
    return total, total - unused


def _single_stack(setting: Setting) -> tuple[Block, ...]:
    a = setting.architecture
    plain, given = of_masks = by_masks(setting)
    masked = [False] * a.layers if a.window is None or given is plain else a.window.near(a.layers)
    causal, runs = a.family is Family.DECODER, _runs(a, masked)
    # one of each kind: where every other layer has experts there are as many runs as layers
    layers = {run: layer(of_masks[run[1]], run[2], causal=causal, mixed=run[0]) for run in set(runs)}
    return (embedding(setting), *(layers[run] for run in runs), head(setting))


def _runs(a: Architecture, masked: list[bool]) -> list[tuple[bool, bool, int]]:
    """Return the layers in order as runs of equal ones.

    With experts or without; with a mask or without, as ``masked`` says; and how many.
    """
    mixed = [
        a.experts is not None and index >= a.experts.dense_layers and (index + 1) % a.experts.period == 0
        for index in range(a.layers)
    ]
    runs = groupby(zip(mixed, masked, strict=True))
    return [(*kind, sum(1 for _ in run)) for kind, run in runs]
