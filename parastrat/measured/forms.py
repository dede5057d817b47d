"""The model of a measured run as its software trained it, by what the row says."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from parastrat.measured.skipped import CannotPredictError
from parastrat.measured.stacks import (
    gathers_in_graph,
    has_four_bits,
    is_before,
    is_since,
    keeps_gathered,
)
from parastrat.model import OperatorKind, Split
from parastrat.plan import Recompute
from parastrat.saved import Saved
from parastrat.sources.adapters import with_adapters
from parastrat.sources.kept import with_attended, with_every_product, with_exchanged, with_gathered
from parastrat.sources.packed import with_packed
from parastrat.stage_load import StageLoad

if TYPE_CHECKING:
    from parastrat.measured.rows import MeasuredRow
    from parastrat.model import Block, ModelSpec, Operator
    from parastrat.stack import Stack

_FP32 = 4
#: how tables say that a loss is computed in the format of the products
_SHORT = "short"
FINE_TUNING = ("sft", "lora")
#: of adapters where a table says no more than that there are some: Megatron-Bridge's default, whose recipes
#: for performance put them beside queries, keys and values (NVIDIA-NeMo/Megatron-Bridge @067f987,
#: src/megatron/bridge/peft/lora.py, perf_recipes/llama)
_USUAL_RANK = 32
#: how rows write that DeepSpeed's pipeline counts the embedding and the head as layers, as a module's name
#: matches (bigscience-workshop/Megatron-DeepSpeed @f4157be, megatron/model/gpt_model.py, GPTModelPipe;
#: DeepSpeed runtime/pipe/module.py @56c5223, _partition_layers)
_WITH_ENDS = "type:transformer|embed"
#: torchao's products of four bits are no operators that selective recompute keeps: torch._scaled_mm_v2 is
#: not among compute_intensive_ops (torch/_functorch/partitioners.py, get_default_op_list; pytorch/ao
#: @36027d8, torchao/prototype/moe_training/nvfp4_training/nvfp4_linear.py). Runs of this page have the
#: last layers in bf16 (pytorch/torchtitan @b5bcd76, torchtitan/models/qwen3/config_registry.py,
#: _NVFP4_BF16_TAIL_FRACTION)
_MIXED = "components/quantization/nvfp4.md"
_BF16_TAIL = 0.15


def form_of(row: MeasuredRow, model: ModelSpec, stack: Stack) -> ModelSpec:
    """Return a run's model with what was trained beside it, and how its samples and stages were cut."""
    if row.task == "lora":
        model = with_adapters(model, _USUAL_RANK)
    packed, length = stack.unstated.packed_tokens, model.sequence_length
    if row.task in FINE_TUNING and packed is not None and length is not None:
        model = with_packed(model, min(1.0, packed / length))
    if model.stage_load is StageLoad.LAYERS and _WITH_ENDS in (row.notes or ""):
        model = replace(model, stage_load=StageLoad.BLOCKS)
    if is_before(row, stack.unstated.holds_fp32_logits_until):
        model = replace(model, blocks=tuple(_holding_logits(block, model) for block in model.blocks))
    if row.loss_format is not None:
        model = replace(model, blocks=tuple(_in_short_format(row, block, model) for block in model.blocks))
    return _recomputed(row, model, stack) if stack.selective_recompute is Recompute.SELECTIVE else model


def _recomputed(row: MeasuredRow, model: ModelSpec, stack: Stack) -> ModelSpec:
    """Return the model with what a run's selective recompute keeps, by its day and what ran."""
    unstated = stack.unstated
    if gathers_in_graph(row) and is_since(row, unstated.graph_keeps_products_since):
        model = with_every_product(model)
    if keeps_gathered(row, unstated) and (row.tp or 1) > 1:
        model = with_gathered(model)
    if (row.ep or 1) > 1 and is_since(row, unstated.keeps_exchanged_since):
        model = with_exchanged(model)
    if has_four_bits(row):
        in_bf16 = _BF16_TAIL if _MIXED in (row.source or "") else 0.0
        model = with_attended(model, model.layers - ceil(in_bf16 * model.layers))
    return model


def _in_short_format(row: MeasuredRow, block: Block, model: ModelSpec) -> Block:
    """Return a head whose loss moves logits in the products' format alone.

    torch's cross entropy reads them and writes their log-softmax. Backward reads that and the gradient of
    its log-likelihood, which it writes first, and writes that of the logits: twice as much.

    Raises:
        CannotPredictError: the row names another format.
    """
    if row.loss_format != _SHORT:
        raise CannotPredictError(f"loss_format {row.loss_format!r} is not {_SHORT}")
    columns = model.vocab or 0
    if block.unit or all(operator.n != columns for operator in block.operators):
        return block
    moved = 2 * model.precision.compute_bytes * columns * (model.sequence_length or 0)
    operators = tuple(
        replace(operator, bytes=moved) if _is_loss(operator) else operator for operator in block.operators
    )
    return replace(block, operators=operators)


def _is_loss(operator: Operator) -> bool:
    """Return whether an operator of a head is its loss, which tp divides with the logits."""
    return operator.kind is OperatorKind.ELEMENTWISE and operator.split is Split.TENSOR


def _holding_logits(block: Block, model: ModelSpec) -> Block:
    """Return a head whose logits in fp32 are held while backward runs, beside the room of short ones."""
    if not block.output.total:
        return block
    logits = _FP32 * (model.vocab or 0) * (model.sequence_length or 0)
    return replace(block, output=block.output + Saved(loss=logits))
