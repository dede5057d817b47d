"""Closed form of transformer layers: parameters, operators and what backward keeps.

Bytes are those of one sample. ``b`` is the bytes of an activation element; eager kernels compute norms in
fp32 and keep each intermediate, compiled ones keep the inputs of matrix multiplies and of norms and compute
the elementwise rest again (torch/_functorch/config.py, ban_recompute_materialized_backward), fused ones
are Megatron-Core's.

Sources: Korthikanti et al., arXiv:2205.05198, section 4.1 (34 s b h of a fused GPT layer, which the FUSED
form reproduces without dropout's masks); the eager form was derived from Hugging Face's modules and is
checked against tensors that autograd saves (tests/sources/test_saved_tensors.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.model import Family, Operator, OperatorKind, Parameters, Split
from parastrat.saved import NOTHING, Activations, Saved
from parastrat.sources.architecture import Norm
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.sources.architecture import Architecture

#: fp32 statistics of norms and of flash attention's softmax
FP32_BYTES = 4
_FP32 = FP32_BYTES
_RMS = Norm.RMS, Norm.RMS_FP32
#: a composite layer norm makes twice what lies from the mean, and scales it before its weight does
_FROM_MEAN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a closed form is evaluated for."""

    architecture: Architecture
    #: tokens of one sample in this stack of layers
    tokens: int
    #: bytes of an activation element
    element: int
    kernels: Kernels
    #: weights are in fp32 and so is the residual stream; products read short copies
    autocast: bool = False

    @property
    def stream(self) -> int:
        """Bytes of an element of the residual stream."""
        return _FP32 if self.autocast or self.architecture.fp32_stream else self.element


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a layer: attention, a feed-forward, a norm."""

    parameters: tuple[Parameters, ...] = ()
    operators: tuple[Operator, ...] = ()
    #: kept for backward without recompute
    saved: Saved = NOTHING
    #: what the ``selective`` policy keeps of it beside products' outputs: flash attention's
    selective: Saved = NOTHING
    #: what its products of weights give, in their order: of a block that policy keeps every second one
    outputs: tuple[Saved, ...] = ()
    #: freed when the attention core is computed again
    core: Saved = NOTHING
    #: what of it is attention's output, and what its products of weights give that backward reads
    attended: Saved = NOTHING
    products: Saved = NOTHING


def joined(*parts: Part) -> Part:
    """Return parts in sequence as one."""
    return Part(
        parameters=tuple(group for part in parts for group in part.parameters),
        operators=tuple(operator for part in parts for operator in part.operators),
        saved=_together([part.saved for part in parts]),
        selective=_together([part.selective for part in parts]),
        outputs=tuple(output for part in parts for output in part.outputs),
        core=_together([part.core for part in parts]),
        attended=_together([part.attended for part in parts]),
        products=_together([part.products for part in parts]),
    )


def _together(several: Sequence[Saved]) -> Saved:
    # most parts have none of most of these
    some = [saved for saved in several if saved is not NOTHING]
    return sum(some[1:], some[0]) if some else NOTHING


def activations(part: Part, input_bytes: float) -> Activations:
    """Return a block's activations under every policy; a checkpoint keeps the block's input."""
    kept = Saved(sequence=input_bytes)
    without_core = part.saved + part.core.times(-1)
    # a policy keeps nothing that would not be kept without it
    outputs = _together([kept, part.selective, *part.outputs[::2]])
    selective = min(outputs, without_core, key=lambda saved: saved.total)
    attended = kept + part.attended
    return Activations(
        none=part.saved,
        attention=without_core,
        selective=selective,
        full=kept,
        attended=attended,
        products=attended + part.products,
    )


def summands(setting: Setting) -> Saved:
    """Return the output of a product whose rows tensor parallelism divides: a summand, whole on each rank.

    Backward does not read it, and a compiler leaves it out.
    """
    if setting.kernels.compiled:
        return NOTHING
    return Saved(replicated=setting.element * setting.architecture.hidden * setting.tokens)


def matmul(tokens: int, n: int, k: int, side: str, *, count: int = 1) -> Operator:
    """Return a weight's product with every token; ``side`` is what tensor parallelism divides."""
    return Operator(
        kind=OperatorKind.MATMUL,
        flops=2 * tokens * n * k,
        bytes=0,
        m=tokens,
        n=n,
        k=k,
        split=Split.TENSOR if side else Split.REPLICATED,
        split_side=side,
        count=count,
    )


def convolution(m: int, n: int, k: int) -> Operator:
    """Return a convolution as the product of ``m`` places, ``n`` channels and ``k`` inputs of each."""
    return Operator(kind=OperatorKind.CONVOLUTION, flops=2 * m * n * k, bytes=0, m=m, n=n, k=k)


def of_batch(element: int) -> int:
    """Return the bytes of a number of a batch: the training loop's in fp32 stays beside a short copy."""
    return element if element == FP32_BYTES else element + FP32_BYTES


def elementwise(moved: float, split: Split, *, count: int = 1) -> Operator:
    """Return kernels that move bytes and compute next to nothing."""
    return Operator(
        kind=OperatorKind.ELEMENTWISE, flops=0, bytes=moved, split=split, count=count, weighted=False
    )


#: bytes an element of a norm in several kernels as it runs backward: five tensors in fp32
OF_COMPOSITE = 5 * FP32_BYTES
#: bytes that the eight kernels of a composite norm of a tensor in 16 bits read and write for each element,
#: 40 forward and 104 backward, over three, as backward counts twice: as torch 2.13 dispatches them, of
#: torchtitan's RMSNorm and of torch's own. In fp32, where nothing is cast, 30 and 104
COMPOSITE_NORM = 48


def norm(
    setting: Setting, *, added: bool, gathered: bool = False, readers: int = 1, routed: bool = False
) -> Part:
    """Return a norm over the width, with the residual addition before it if ``added``.

    Such a norm, unless experts that take a stretch of the sequence read it (``routed``), and one that is
    ``gathered``, is read by a matmul whose columns tensor parallelism divides.
    Its output is gathered for that, and torch keeps it whole; Megatron gathers it again in backward
    (Korthikanti et al., section 4.2.2). Under autocast its input is in fp32, and each of its ``readers``,
    the products, keeps a short copy of its output. Without readers its output is kept by what follows.
    """
    a, b, tokens = setting.architecture, setting.element, setting.tokens
    rms = a.norm in _RMS
    made = min(readers, 1) * b * a.hidden
    if setting.autocast:
        # its input and what it multiplies with its weight; or its input alone
        kept = (2 * _FP32 * a.hidden + _FP32) if rms else (_FP32 * a.hidden + 2 * _FP32)
        if a.norm is Norm.COMPOSITE:
            kept = _FROM_MEAN * _FP32 * a.hidden + _FP32
        kept += readers * b * a.hidden
    elif is_composite(setting) and not rms:
        kept = _FROM_MEAN * _FP32 * a.hidden + _FP32 + made
    elif is_composite(setting):
        # the fp32 copy (in fp32 the residual itself), the normalised input, and the next matmul's input;
        # a layer's norm reads a short copy of a stream in fp32, the last norm that itself
        normalised = _FP32 if a.norm is Norm.RMS_FP32 or (gathered and a.fp32_stream) else b
        kept = (_FP32 + normalised) * a.hidden + _FP32 + made
        if a.relative_buckets and b < _FP32:
            # T5 multiplies the input itself, not its fp32 copy
            kept += b * a.hidden
    elif setting.kernels.compiled:
        kept = b * a.hidden + _FP32 + made
    elif setting.kernels.eager and a.norm is Norm.BARE and a.family is Family.DECODER:
        # an fp32 copy of its input (OLMo)
        kept = _FP32 * a.hidden + 2 * _FP32 + made
    else:
        kept = b * a.hidden + 2 * _FP32 + made
    copies = readers if setting.autocast else 1
    is_whole = ((added and not routed) or gathered) and not setting.kernels.fused
    whole = copies * b * a.hidden if is_whole else 0
    moved = (COMPOSITE_NORM if is_composite(setting) else 2 * b) + (3 * b if added else 0)
    return Part(
        parameters=(Parameters(trainable=a.hidden * a.norm.weights),) if a.norm.weights else (),
        operators=(elementwise(moved * a.hidden * tokens, Split.SEQUENCE),),
        saved=Saved(sequence=(kept - whole) * tokens, replicated=whole * tokens),
    )


def is_composite(setting: Setting) -> bool:
    """Return whether norms are several kernels, each of which makes a tensor."""
    return setting.kernels.eager and setting.architecture.norm in (*_RMS, Norm.COMPOSITE)


def copies_input(setting: Setting) -> bool:
    """Return whether a norm keeps an fp32 copy of what it reads, or what it made of that, and not itself.

    T5's multiplies its input. Where norms stand behind attention instead (OLMo 2), products keep that.
    """
    a = setting.architecture
    if not setting.kernels.eager:
        return False
    if a.norm in (*_RMS, Norm.BARE):
        return setting.stream < FP32_BYTES and not a.relative_buckets
    return a.norm is Norm.COMPOSITE


def dropout_masks(setting: Setting, *, branches: int = 2) -> Part:
    """Return the byte masks of dropout on the output of each branch, as attention and the feed-forward."""
    if not setting.architecture.dropout:
        return Part()
    return Part(saved=Saved(sequence=branches * setting.architecture.hidden * setting.tokens))


def undivided(part: Part) -> Part:
    """Return a part that every tp rank has and computes whole."""

    def whole(saved: Saved) -> Saved:
        if not saved.tensor:
            return saved
        return replace(saved, tensor=0, replicated=saved.replicated + saved.tensor)

    return replace(
        part,
        parameters=tuple(replace(group, split=Split.REPLICATED) for group in part.parameters),
        operators=tuple(replace(each, split=Split.REPLICATED, split_side="") for each in part.operators),
        saved=whole(part.saved),
        selective=whole(part.selective),
        outputs=tuple(map(whole, part.outputs)),
        core=whole(part.core),
        attended=whole(part.attended),
        products=whole(part.products),
    )


def divides_tokens(setting: Setting) -> bool:
    """Return whether experts that tp leaves whole are given a stretch of the sequence on each rank.

    Auto_parallelize leaves the stream divided from attention to attention, and gathers it for the shared
    experts alone, which it divides.
    """
    a, experts = setting.architecture, setting.architecture.experts
    if experts is None or a.pattern or setting.kernels.fused:
        return False
    return not experts.latent


def takes_stretch(setting: Setting) -> bool:
    """Return whether nothing of a mixture reads more than such a stretch.

    torchtitan, whose kernels are compiled, gathers the stream for the router (``PrepareModuleInputOutput``,
    torchtitan/models/llama4/infra/parallelize.py @05a6cb3).
    """
    experts = setting.architecture.experts
    shared = experts is not None and experts.shared_ffn
    return divides_tokens(setting) and setting.kernels.eager and not shared


def gradients(setting: Setting, inner: int, width: int, *, mixed: bool) -> Saved:
    """Return the gradients of the inner tensors, and of the residual and its branch.

    Those that products give back are summands on each tp rank, whole until they are added up, which torch
    does behind the last of them; Megatron's fused projections give back one. Those of experts that take a
    stretch of the sequence are of that.
    """
    tensors = 0 if setting.kernels.fused or (mixed and takes_stretch(setting)) else 2
    whole = tensors * setting.element * setting.tokens * setting.architecture.hidden
    stream = Saved(sequence=2 * width - whole, replicated=whole)
    of_inner = 2 * setting.element * inner
    return stream + (Saved(expert=of_inner) if mixed else Saved(tensor=of_inner))
