"""The model of a measured run: a preset with the sizes that the row states, or a form of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.errors import ModelError
from parastrat.measured.skipped import CannotPredictError
from parastrat.model import Family
from parastrat.profiles import model_names, nearest
from parastrat.sources import load_source
from parastrat.sources.architecture import Architecture, Experts, Norm
from parastrat.sources.presets import TransformerSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.measured.rows import MeasuredRow
    from parastrat.model import ModelSource

#: two forms are told apart by their parameters where the row states those; they differ by a tenth or more
_NEAR = 0.05
#: what tables call runs of a model before it had its name and sizes. BLOOM's scripts have its embedding
#: norm and ALiBi from the first (bigscience-workshop/bigscience train/tr11-176B-ml @9e64ede)
_NAMED_LATER = {"BLOOM-prequel": "bloom-176b"}
#: what tables call a model beside which adapters are trained; the row's task says the same
_WITH_ADAPTERS = " Finetuning LORA"
#: how tables say that a vocabulary is not padded
_UNPADDED = "none"
#: elements of a head where a row does not state heads
_USUAL_HEAD = 128


def source_of(row: MeasuredRow) -> ModelSource:
    """Return the model that a row names, with the sizes that it states.

    Raises:
        CannotPredictError: it is no preset, and the row leaves out sizes or what tells its form.
    """
    try:
        name = row.model.removesuffix(_WITH_ADAPTERS) if row.task == "lora" else row.model
        source = load_source(_NAMED_LATER.get(name.split()[0], name))
    except ModelError as error:
        if "is no preset: " in error.message:
            raise CannotPredictError(error.message) from error
        source = None
    if source is None:
        return _of_sizes(row)
    if (
        isinstance(source, TransformerSource)
        and source.has_tokens
        and not source.architecture.encoder_layers
    ):
        return replace(source, architecture=_resized(source.architecture, row))
    return source


def has_experts(row: MeasuredRow) -> bool:
    """Return whether a row's model is a mixture of experts: as it states, or as the preset it names."""
    if row.moe_experts:
        return True
    try:
        source = source_of(row)
    except CannotPredictError:
        return False
    return isinstance(source, TransformerSource) and source.architecture.experts is not None


def _resized(known: Architecture, row: MeasuredRow) -> Architecture:
    """Return a preset with the sizes of a row: tables name cut or padded models by the same names."""
    width = row.hidden or known.hidden
    heads = row.heads or (known.heads if width == known.hidden else _usual_heads(width))
    same_heads = width == known.hidden and heads == known.heads
    latent = known.latent is not None
    experts, layers = known.experts, row.layers or known.layers
    return replace(
        known,
        layers=layers,
        pattern=known.pattern[:layers],
        hidden=width,
        heads=heads,
        kv_heads=known.kv_heads if latent else row.kv_heads or (known.kv_heads if same_heads else heads),
        head_dim=known.head_dim if same_heads else width // heads,
        ffn=row.ffn_hidden if row.ffn_hidden and experts is None else known.ffn,
        vocab=_vocabulary(row) or known.vocab,
        positions=max(known.positions, row.seq_len or 0) if known.positions else 0,
    )


def is_unpadded(row: MeasuredRow) -> bool:
    """Return whether a run's vocabulary is as it is, whatever its stack would do.

    Raises:
        CannotPredictError: the row names another way.
    """
    if row.vocab_padding not in (None, _UNPADDED):
        raise CannotPredictError(f"vocab_padding {row.vocab_padding!r} is not {_UNPADDED}")
    return row.vocab_padding == _UNPADDED


def _vocabulary(row: MeasuredRow) -> int | None:
    """Return the rows of a run's vocabulary, of all tp ranks together, before a stack pads it."""
    if row.vocab is None or not is_unpadded(row):
        return row.vocab
    return row.vocab - row.vocab % (row.tp or 1)


def _of_sizes(row: MeasuredRow) -> ModelSource:
    """Return a decoder of the sizes that a row states, as GPT or as Llama, whichever has its parameters."""
    missing = [name for name in ("layers", "hidden", "vocab", "seq_len") if not getattr(row, name)]
    if missing:
        near = nearest(row.model, model_names())
        meant = f"; did you mean {near[0]}?" if near else ""
        raise CannotPredictError(
            f"{row.model} is no preset, and {', '.join(missing)} are not stated{meant}"
        )
    forms = [_gpt(row), _llama(row)]
    if row.moe_experts:
        forms = forms[1:]
    if row.params_b is None:
        return forms[-1 if _is_gated(row) else 0]
    wanted = row.params_b * 1e9

    def apart(form: TransformerSource) -> float:
        return min(abs(count / wanted - 1) for count in _counts(form))

    best = min(forms, key=apart)
    if apart(best) > _NEAR:
        raise CannotPredictError(f"{row.model} is no preset, and neither GPT nor Llama of its sizes")
    return best


def _is_gated(row: MeasuredRow) -> bool:
    """Return whether sizes are a Llama's: fewer heads of keys, or a width that gates make odd."""
    grouped = row.kv_heads is not None and row.kv_heads != row.heads
    return grouped or (row.ffn_hidden is not None and row.ffn_hidden != 4 * (row.hidden or 0))


def _counts(source: TransformerSource) -> tuple[int, int]:
    """Return a model's parameters as tables count them: with the embedding and without."""
    total = source.at(1, Precision.BF16_MIXED, Kernels.EAGER).parameters
    return total, total - source.architecture.vocab * source.architecture.hidden


def _gpt(row: MeasuredRow) -> TransformerSource:
    own = _plain(row)
    return TransformerSource(
        ref=row.model,
        architecture=replace(
            own,
            norm=Norm.LAYER,
            gated=False,
            tied=True,
            qkv_bias=True,
            output_bias=True,
            ffn_bias=True,
            fused_qkv=True,
            positions=row.seq_len or 0,
        ),
    )


def _llama(row: MeasuredRow) -> TransformerSource:
    own = _plain(row)
    experts = None
    if row.moe_experts:
        if not row.topk:
            raise CannotPredictError(f"{row.model}: experts of a token are not stated")
        experts = Experts(count=row.moe_experts, top_k=row.topk, ffn=own.ffn)
    return TransformerSource(ref=row.model, architecture=replace(own, experts=experts))


def _plain(row: MeasuredRow) -> Architecture:
    hidden = row.hidden or 1
    heads = row.heads or _usual_heads(hidden)
    return Architecture(
        name=row.model,
        family=Family.DECODER,
        layers=row.layers or 1,
        hidden=hidden,
        heads=heads,
        kv_heads=row.kv_heads or heads,
        head_dim=hidden // heads,
        ffn=row.ffn_hidden or 4 * hidden,
        vocab=_vocabulary(row) or 1,
        norm=Norm.RMS,
        gated=True,
        tied=False,
        source=row.source or "",
    )


def _usual_heads(hidden: int) -> int:
    """Return as many heads as are about as wide as most models' are."""
    whole = [heads for heads in range(1, hidden + 1) if hidden % heads == 0]
    return min(whole, key=lambda heads: abs(hidden / heads - _USUAL_HEAD))
