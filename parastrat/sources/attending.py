"""Closed form of attention: in one kernel, with the scores of all pairs, and from a latent.

Sources: as of ``layers``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.model import Family, Operator, OperatorKind, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.architecture import QkNorm, Scores
from parastrat.sources.biases import is_biased
from parastrat.sources.layers import FP32_BYTES, Part, Setting, elementwise, joined, matmul, summands
from parastrat.sources.qk_norms import qk_norm_bytes, qk_norm_parameters
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture

_FP32 = FP32_BYTES


def attention(setting: Setting, *, causal: bool, memory_tokens: int | None = None) -> Part:
    """Return self-attention, or attention to ``memory_tokens`` of another stack.

    Flash and memory-efficient attention keep q, k, v, their output and one fp32 a row and head. A fused
    projection stays whole while its queries live. Keys and values of caches are not copied: trainings have
    none.
    """
    a = setting.architecture
    if a.latent is not None:
        return _latent_attention(setting)
    tokens, b = setting.tokens, setting.element
    keys = tokens if memory_tokens is None else memory_tokens
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    weights = a.hidden * (q + 2 * kv) + q * a.hidden
    inner_bias = (q + (2 if a.key_bias else 1) * kv) if a.qkv_bias else 0
    sinks = a.heads if a.sinks else 0
    norms = qk_norm_parameters(a)
    divided, whole = (norms, 0) if a.qk_norm is QkNorm.WIDTH else (0, norms)
    groups = [Parameters(trainable=weights + inner_bias + sinks + divided, split=Split.TENSOR)]
    replicated = (a.hidden if a.output_bias else 0) + whole
    if replicated:
        groups.append(Parameters(trainable=replicated))
    flash = not keeps_scores(setting)
    statistics = _FP32 * a.heads * tokens if flash else 0
    rotary = 2 * b * (q + kv) * tokens if a.turns else 0
    kept = b * (2 * q * tokens + 2 * kv * keys) + statistics + qk_norm_bytes(setting, keys)
    if a.scores is Scores.FP32 and setting.kernels.eager and not setting.autocast:
        kept += (_FP32 - b) * (q * tokens + kv * keys)
    if a.scores is Scores.SCALED and setting.kernels.eager:
        kept += b * q * tokens
    if not flash and not setting.kernels.fused:
        # keys and values are repeated for the queries that share them
        kept += 2 * b * (q - kv) * keys
    copied = b * q * tokens if a.heads_first and not setting.kernels.fused else 0
    kept += copied
    if a.values_in_projection and setting.kernels.eager:
        kept += b * (q + kv) * tokens
    # of a mask and of what is repeated for it the whole is made again with attention where torch does that
    share = masked_share(setting, tokens) if causal and memory_tokens is None else 0.0
    mask, repeated = share * b * tokens * keys, share * 2 * b * (q - kv) * keys
    first = ((q + 2 * kv) * tokens,) if a.fused_qkv else (q * tokens, kv * keys, kv * keys)
    seen = _pairs(a, tokens) if flash and causal and memory_tokens is None else tokens * keys
    # rotary embedding gives queries and keys in fp32, which a checkpoint of attention keeps as they are
    given = (_FP32 - b) * (q * tokens + kv * keys) if rotary and setting.autocast else 0
    own = Part(
        parameters=tuple(groups),
        operators=(
            *_projections(a, tokens, keys, (q, kv)),
            _core(seen, tokens, a.heads, a.head_dim),
            elementwise(_turned(setting, rotary, (q * tokens, kv * keys)) + b * q * tokens, Split.TENSOR),
        ),
        saved=Saved(tensor=kept + repeated, replicated=mask),
        # of two products without flash attention the second gives as much, and is kept as well
        selective=Saved(tensor=b * q * tokens + statistics),
        outputs=(*(Saved(tensor=b * each) for each in first), summands(setting)),
        core=Saved(
            tensor=statistics - given + copied + (repeated if a.masked else 0) if flash else 0,
            replicated=mask,
        ),
        attended=Saved(tensor=b * q * tokens + statistics),
        products=Saved(tensor=b * (q * tokens + 2 * kv * keys), sequence=b * a.hidden * tokens),
    )
    return own if flash else joined(own, _scores(setting, a.heads * tokens * keys))


def masked_share(setting: Setting, tokens: int) -> float:
    """Return the share of layers whose attention transformers gives a mask of all pairs.

    Falcon's all have one (``allow_is_causal_skip=False``, modeling_falcon.py), others where a window is no
    longer than the sequence, though one as long hides nothing (``sdpa_mask``, masking_utils.py). Torch
    makes of its bytes what is added to scores, and the kernel that takes it has a key and a value for each
    query: both are repeated before it (``use_gqa_in_sdpa``, sdpa_attention.py), or by torch (Falcon).
    """
    a = setting.architecture
    if not setting.kernels.eager or keeps_scores(setting):
        return 0.0
    if a.masked:
        return 1.0
    return a.window.layers / a.layers if a.window is not None and a.window.size <= tokens else 0.0


def by_masks(setting: Setting) -> tuple[Setting, Setting]:
    """Return what layers that are given no mask are evaluated for, and those that are, if only some are.

    What a mask adds to scores is as large as everything else that a layer keeps of a long sequence, and
    its kernel computes all pairs: stages that have few such layers hold less, and are cut longer.
    """
    a, share = setting.architecture, masked_share(setting, setting.tokens)
    if a.window is None or not 0 < share < 1:
        return setting, setting
    windows = None, replace(a.window, layers=a.layers, whole=())
    none, given = (replace(setting, architecture=replace(a, window=window)) for window in windows)
    return none, given


def attention_masks(setting: Setting) -> Saved:
    """Return the masks of all pairs that transformers makes before the layers of a decoder, once for all.

    Where scores are kept in the stream's format, one for layers that see near keys alone and one for others
    (``eager_mask``, masking_utils.py); else, where a layer has one at all, bytes that samples share.
    """
    a, pairs = setting.architecture, setting.tokens**2
    if a.family is not Family.DECODER or not setting.kernels.eager:
        return Saved()
    if keeps_scores(setting):
        kinds = 2 if a.window is not None and a.window.layers < a.layers else 1
        return Saved(replicated=kinds * setting.stream * pairs)
    return Saved(fixed=pairs if masked_share(setting, setting.tokens) else 0)


def _turned(setting: Setting, rotary: float, sizes: tuple[int, int]) -> float:
    """Return the bytes that move before attention's core: to turn queries and keys, and to repeat keys.

    In eager mode those of the kernels that torch 2.13 dispatches for elements in 16 bits, forward and
    backward over three: 20 and 28 to turn one, as Hugging Face or torchtitan do, 2.5 and 6.5 for each that
    repeating keys or values gives.
    """
    if not setting.kernels.eager:
        return rotary
    queries, keys = sizes
    repeated = 2 * queries if keys < queries else 0
    return (16 if rotary else 0) * (queries + keys) + 3 * repeated


def _scores(setting: Setting, count: float) -> Part:
    """Return the softmax between attention's products, with masked scores too (arXiv:2205.05198, 4.1).

    The product writes scores, the softmax reads and writes them, and the next product reads them; dropout
    reads and writes them once more, with a byte of a mask. Kept are what the products and dropout read.
    """
    b, dropout = setting.element, setting.architecture.dropout
    if not setting.kernels.fused:
        return _library_scores(setting, count)
    kept = Saved(tensor=(b + (b + 1 if dropout else 0)) * count)
    moved = (4 * b + (2 * b + 1 if dropout else 0)) * count
    # two kernels
    return Part(operators=(elementwise(moved / 2, Split.TENSOR, count=2),), saved=kept, core=kept)


def keeps_scores(setting: Setting) -> bool:
    """Return whether attention is two products with the scores of all pairs between them."""
    if setting.kernels.fused:
        return setting.kernels is Kernels.FUSED_MATH
    return setting.architecture.scores is not None


def _library_scores(setting: Setting, count: float) -> Part:
    """Return what transformers does between attention's products, kernel by kernel.

    The softmax in fp32 keeps its result, whose short copy the next product reads; a cap keeps its tanh, and
    what clamps scores, or adds them up beside the softmax, keeps these.
    With sinks the softmax is in the scores' format, of which autocast makes fp32 as it joins both, and
    without autocast the product reads its result. A compiler keeps short ones alone. No policy makes them
    again in a block that keeps the rest.
    """
    b, scores = setting.element, setting.architecture.scores
    # in fp32 there is no short copy
    short = b if b < _FP32 else 0
    kept, kernels = {
        Scores.PLAIN: (_FP32 + short, 4),
        Scores.CAPPED: (_FP32 + short + b, 7),
        Scores.SINKS: (_FP32 + b if setting.autocast else b, 6),
        Scores.SCALED: (_FP32 + short + (_FP32 if setting.autocast else b), 7),
        Scores.FP32: (_FP32 + short, 6),
        Scores.CLAMPED: (_FP32 + short + b, 5),
    }[scores or Scores.PLAIN]
    if setting.kernels.compiled:
        kept, kernels = b, 2
    return Part(
        operators=(elementwise(2 * b * count, Split.TENSOR, count=kernels),),
        saved=Saved(tensor=kept * count),
    )


def scores_gradients(setting: Setting) -> Saved:
    """Return what backward of the softmax between attention's products makes more than it has freed.

    Its gradients before and after it, where the product behind it has freed the short copy.
    """
    a, b = setting.architecture, setting.element
    short = a.scores is Scores.SINKS and not setting.autocast
    return Saved(tensor=(2 * b if short else 2 * _FP32 - b) * a.heads * setting.tokens**2)


def _projections(a: Architecture, tokens: int, keys: int, widths: tuple[int, int]) -> tuple[Operator, ...]:
    q, kv = widths
    out = matmul(tokens, a.hidden, q, "k")
    if a.fused_qkv:
        return matmul(tokens, q + 2 * kv, a.hidden, "n"), out
    return matmul(tokens, q, a.hidden, "n"), matmul(keys, kv, a.hidden, "n", count=2), out


def _pairs(a: Architecture, tokens: int) -> float:
    """Return the queries times the keys that each sees under a causal mask, on average over the layers."""
    full = tokens * tokens / 2
    window = a.window
    if window is None or window.size >= tokens:
        return full
    near = window.size / 2 if window.chunked else window.size - window.size**2 / (2 * tokens)
    share = window.layers / a.layers
    return share * near * tokens + (1 - share) * full


def hidden_flops(setting: Setting) -> float:
    """Return a layer's FLOPs, on average, for pairs that a mask hides: a kernel that takes one runs all."""
    a, tokens = setting.architecture, setting.tokens
    # biases are a mask with numbers
    masked = 1.0 if is_biased(setting) else masked_share(setting, tokens)
    every = tokens * tokens
    hidden = masked * every + (1 - masked) * every / 2 - _pairs(a, tokens)
    return 4 * hidden * a.heads * a.head_dim if masked else 0.0


def _core(pairs: float, tokens: int, heads: int, width: float) -> Operator:
    """Return q k^T and its product with v, for so many pairs of a query and a key, in heads so wide."""
    return Operator(
        kind=OperatorKind.ATTENTION,
        flops=4 * pairs * heads * width,
        bytes=0,
        m=heads * tokens,
        n=max(round(pairs / tokens), 1),
        k=round(width),
        split=Split.TENSOR,
        weighted=False,
    )


def _latent_attention(setting: Setting) -> Part:
    """Return multi-head latent attention as it is trained: k and v are expanded per head."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    latent = a.latent
    if latent is None:
        raise ValueError("the architecture has no latent attention")
    qk = a.heads * (latent.nope_dim + latent.rope_dim)
    v = a.heads * latent.v_dim
    queries = latent.q_rank or a.hidden
    down = a.hidden * (latent.q_rank + latent.kv_rank + latent.rope_dim)
    norms = latent.q_rank + latent.kv_rank
    keys_values = a.heads * (latent.nope_dim + latent.v_dim)
    up = queries * qk + latent.kv_rank * keys_values
    low_rank = (_FP32 + 2 * b) * norms if setting.kernels.eager else 2 * b * norms
    statistics = _FP32 * a.heads * tokens
    # values are a part of the product that expands keys too, which stays whole where nothing is fused
    values = keys_values if setting.kernels.eager else v
    kept = b * (2 * qk + values + v) * tokens + statistics
    return Part(
        parameters=(
            Parameters(trainable=up + v * a.hidden, split=Split.TENSOR),
            Parameters(trainable=down + norms),
        ),
        operators=(
            *((matmul(tokens, latent.q_rank, a.hidden, ""),) if latent.q_rank else ()),
            matmul(tokens, latent.kv_rank + latent.rope_dim, a.hidden, ""),
            matmul(tokens, qk, queries, "n"),
            matmul(tokens, keys_values, latent.kv_rank, "n"),
            matmul(tokens, a.hidden, v, "k"),
            _core(_pairs(a, tokens), tokens, a.heads, (qk + v) / (2 * a.heads)),
            elementwise(3 * b * (qk + norms) * tokens, Split.TENSOR),
        ),
        saved=Saved(replicated=low_rank * tokens, tensor=kept),
        selective=Saved(tensor=b * v * tokens + statistics),
        outputs=(
            *((Saved(replicated=b * latent.q_rank * tokens),) if latent.q_rank else ()),
            Saved(tensor=b * qk * tokens),
            Saved(replicated=b * (latent.kv_rank + latent.rope_dim) * tokens),
            Saved(tensor=b * keys_values * tokens),
            summands(setting),
        ),
        core=Saved(tensor=statistics),
        attended=Saved(tensor=b * v * tokens + statistics),
        products=Saved(
            tensor=b * (qk + keys_values) * tokens,
            replicated=b * (latent.q_rank + latent.kv_rank + latent.rope_dim) * tokens,
            sequence=b * a.hidden * tokens,
        ),
    )
