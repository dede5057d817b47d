"""The stack of a measured run: what it was on its day, with what a row says of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.errors import ProfileError
from parastrat.measured.skipped import CannotPredictError
from parastrat.profiles import load_stack
from parastrat.sources.presets import TransformerSource
from parastrat.stack import Attention, Kernels

if TYPE_CHECKING:
    from parastrat.measured.rows import MeasuredRow
    from parastrat.model import ModelSource
    from parastrat.stack import Stack, Unstated

#: what the runs of a stack may do otherwise than ours, which plans of ours have
_UNLIKE_OURS = ("parallel_loss_tensors", "mixed_gradient_bytes", "crosses_divided", "experts_apart")
#: how the names of published files say the month that they tell of
_MONTH = re.compile(r"_(20\d\d)(\d\d)[_.]")
#: runs as fp8 does, its products at the rate of four bits
FOUR_BITS = "nvfp4"
_FP8 = "fp8"
#: torchao's recipe of fp8 with a scale for each row
_ROWS = "rowwise"
#: how they call a schedule of several stages on a rank
_INTERLEAVED = re.compile(r"(?<!non-)\binterleaved ?1f1b", re.IGNORECASE)
#: how tables call the sharding whose collectives are operators of a graph
_IN_GRAPH = ("simplefsdp", "simple_fsdp", "graph_trainer", "graphtrainer")
#: torch's earlier FullyShardedDataParallel
_FSDP1 = re.compile(r"\bfsdp1\b")
#: of such graphs what fuses marked regions alone, such as flex attention; eager kernels run the rest
#: (torchtitan/experiments/graph_trainer/configs.py @a364b4b, inductor_compilation)
_REGIONAL = "regional inductor"

#: of ways to experts and back, whether one copy of a row goes to each domain and rank, and whether that
#: puts rows in the experts' order: DeepEP and HybridEP send once (https://github.com/deepseek-ai/DeepEP),
#: HybridEP's kernels permute too (NVIDIA/Megatron-LM @02ad939, core/transformer/moe/fused_a2a.py,
#: HybridEPDispatch)
_DISPATCHERS = {"alltoall": (False, False), "deepep": (True, False), "hybridep": (True, True)}
#: whether each step is one CUDA graph; graphs of parts of layers launch what other parts take from the host
_GRAPHS = {"none": False, "step": True}


def stack_of(row: MeasuredRow) -> Stack:
    """Return the stack of a run, with what its source leaves out.

    Raises:
        CannotPredictError: it is not stated, or unknown.
    """
    if row.stack is None:
        raise CannotPredictError("stack is not stated")
    try:
        stack = load_stack(row.stack)
        if stack.unstated.stack_in_fp8 is not None and _FP8 in format_of(row) and _is_own(row):
            stack = load_stack(stack.unstated.stack_in_fp8)
    except ProfileError as error:
        raise CannotPredictError.because(error) from error
    narrow = stack.unstated.gathers_fp8 and format_of(row).startswith(_FP8) and _ROWS not in format_of(row)
    own = {name: getattr(stack.unstated, name) for name in _UNLIKE_OURS}
    fused = is_since(row, stack.unstated.one_kernel_steps_since)
    return replace(
        stack,
        **{name: value for name, value in own.items() if value is not None},
        ends_apart=is_since(row, stack.unstated.ends_apart_since) and not gathers_in_graph(row),
        casts_gradients_aside=stack.casts_gradients_aside or _FSDP1.search(_said(row)) is not None,
        steps_in_one_kernel=stack.steps_in_one_kernel or fused,
        steps_by_operation=stack.dtensors and not fused,
        gathers_fp8=stack.gathers_fp8 or narrow,
        casts_four_bits=has_four_bits(row),
        scales_rows=_ROWS in format_of(row),
    )


def is_since(row: MeasuredRow, day: str | None) -> bool:
    """Return whether a run can have been on a day or later; never where that is None."""
    return day is not None and lasted_until(row) >= day


def is_before(row: MeasuredRow, day: str | None) -> bool:
    """Return whether a run was before a day; never where that is None."""
    return day is not None and lasted_until(row) < day


def keeps_gathered(row: MeasuredRow, unstated: Unstated) -> bool:
    """Return whether a run's graph kept what it gathered in its forward: weights, and what tp gathers."""
    if not gathers_in_graph(row) or unstated.graph_keeps_gathered is None:
        return False
    first, last = unstated.graph_keeps_gathered
    return first <= lasted_until(row) <= last


def _is_own(row: MeasuredRow) -> bool:
    """Return whether a row is of torchtitan, whose defaults torch's stacks have for what is unstated."""
    return "torchtitan" in (row.source or "").lower()


def kernels_of(row: MeasuredRow, stack: Stack, source: ModelSource) -> Kernels:
    """Return a stack's kernels, with the loss compiled where it is so by the day of a run."""
    if gathers_in_graph(row) and _REGIONAL in _said(row):
        return Kernels.EAGER
    since, models = stack.unstated.compiles_loss_since, stack.unstated.compiled_loss_models
    if since is None or lasted_until(row) < since or not source.ref.startswith(models or ""):
        return stack.kernels
    if not stack.kernels.eager:
        return Kernels.COMPILED_LOSS
    # graphs that eager kernels run fuse nothing
    return stack.kernels if gathers_in_graph(row) else Kernels.EAGER_BLOCKS


def gathers_in_graph(row: MeasuredRow) -> bool:
    """Return whether a row says that it ran torchtitan's SimpleFSDP, or the graph trainer, which is that.

    Parameters are gathered by operators of the graph, in the stream that computes
    (pytorch/torchtitan torchtitan/experiments/graph_trainer/simple_fsdp.py @fca8ab7).
    """
    return any(name in _said(row) for name in _IN_GRAPH)


def _said(row: MeasuredRow) -> str:
    return f"{row.notes} {row.source}".lower()


def with_stages(row: MeasuredRow, stack: Stack) -> MeasuredRow:
    """Return a run with its stack's number of stages on a rank, where it only says that it has several."""
    stages = stack.unstated.interleaved_stages
    if row.vpp or stages is None or not _INTERLEAVED.search(row.notes or ""):
        return row
    return replace(row, vpp=stages)


def attention_of(stack: Stack, source: ModelSource) -> Attention:
    """Return a run's kernels of attention, which hang on its model too."""
    for kernels, models in (
        (Attention.FLEX, stack.unstated.flex_models),
        (Attention.DROPPING, stack.unstated.dropping_models),
    ):
        if source.ref.startswith(models):
            return kernels
    return stack.attention


def repeated_keys(row: MeasuredRow, stack: Stack, source: ModelSource) -> int:
    """Return how often a run's model has each key and value, of heads that share them."""
    repeats = is_before(row, stack.unstated.repeats_keys_until)
    if not repeats or not isinstance(source, TransformerSource):
        return 1
    return source.architecture.heads // source.architecture.kv_heads


def with_exchanges(row: MeasuredRow, stack: Stack, source: ModelSource) -> Stack:
    """Return a stack with how a run's rows get to experts and back, and whether its steps are captured.

    What a row leaves out is as the stack has it; steps that are captured exchange beside another
    micro-batch, as the recipes do that capture any.

    Raises:
        CannotPredictError: the row names a way that is unknown.
    """
    captured = _stated_capture(row)
    if captured is None:
        captured = is_captured(row, stack.unstated, source)
    beside = captured if row.exchange_overlap is None else row.exchange_overlap
    stack = replace(stack, captured=captured, exchanges_beside=beside)
    if row.dispatcher is None:
        return stack
    if row.dispatcher not in _DISPATCHERS:
        raise CannotPredictError(f"dispatcher {row.dispatcher!r} is none of {', '.join(_DISPATCHERS)}")
    once, permutes = _DISPATCHERS[row.dispatcher]
    return replace(stack, dispatch_once_per_domain=once, permutes_in_exchange=permutes)


def _stated_capture(row: MeasuredRow) -> bool | None:
    if row.cuda_graph is None:
        return None
    if row.cuda_graph not in _GRAPHS:
        raise CannotPredictError(f"cuda_graph {row.cuda_graph!r} is none of {', '.join(_GRAPHS)}")
    return _GRAPHS[row.cuda_graph]


def is_captured(row: MeasuredRow, unstated: Unstated, source: ModelSource) -> bool:
    """Return whether a run's steps are each one CUDA graph, by its release; without one they are not."""
    since, day = unstated.captures_since, row.date or _release(row)
    if since is None or day is None or day < since:
        return False
    return format_of(row) == "mxfp8" and source.ref.startswith(unstated.captured_models)


def _release(row: MeasuredRow) -> str | None:
    """Return the first day of the month that a source's release is named by, as in "(26.04.01)"."""
    found = re.search(r"\((\d\d)\.(\d\d)(\.\d+)?\)$", row.source or "")
    return f"20{found[1]}-{found[2]}-01" if found else None


def lasted_until(row: MeasuredRow) -> str:
    """Return the last day on which a run can have been, of which a row may state month or year alone."""
    month = _MONTH.search(row.source or "")
    if row.date or month is None:
        return row.date or (f"{row.year}-12-31" if row.year else "9999-12-31")
    return f"{month[1]}-{month[2]}-31"


def format_of(row: MeasuredRow) -> str:
    """Return a number format as tables write it, in small letters."""
    return (row.precision or "").lower()


def has_four_bits(row: MeasuredRow) -> bool:
    """Return whether products are of four bits."""
    return format_of(row) == FOUR_BITS
