"""The model of a measured run as its software trained it, by what the row says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.measured.stacks import lasted_until
from parastrat.saved import Saved
from parastrat.sources.adapters import with_adapters
from parastrat.sources.packed import with_packed
from parastrat.stage_load import StageLoad

if TYPE_CHECKING:
    from parastrat.measured.rows import MeasuredRow
    from parastrat.model import Block, ModelSpec
    from parastrat.stack import Stack

_FP32 = 4
FINE_TUNING = ("sft", "lora")
#: of adapters where a table says no more than that there are some: Megatron-Bridge's default, whose recipes
#: for performance put them beside queries, keys and values (NVIDIA-NeMo/Megatron-Bridge @067f987,
#: src/megatron/bridge/peft/lora.py, perf_recipes/llama)
_USUAL_RANK = 32
#: how rows write that DeepSpeed's pipeline counts the embedding and the head as layers, as a module's name
#: matches (bigscience-workshop/Megatron-DeepSpeed @f4157be, megatron/model/gpt_model.py, GPTModelPipe;
#: DeepSpeed runtime/pipe/module.py @56c5223, _partition_layers)
_WITH_ENDS = "type:transformer|embed"


def form_of(row: MeasuredRow, model: ModelSpec, stack: Stack) -> ModelSpec:
    """Return a run's model with what was trained beside it, and how its samples and stages were cut."""
    if row.task == "lora":
        model = with_adapters(model, _USUAL_RANK)
    packed, length = stack.unstated.packed_tokens, model.sequence_length
    if row.task in FINE_TUNING and packed is not None and length is not None:
        model = with_packed(model, min(1.0, packed / length))
    if model.stage_load is StageLoad.LAYERS and _WITH_ENDS in (row.notes or ""):
        model = replace(model, stage_load=StageLoad.BLOCKS)
    if _is_before(row, stack.unstated.holds_fp32_logits_until):
        model = replace(model, blocks=tuple(_holding_logits(block, model) for block in model.blocks))
    return model


def _is_before(row: MeasuredRow, day: str | None) -> bool:
    """Return whether a run was before a day; never where that is None."""
    return day is not None and lasted_until(row) < day


def _holding_logits(block: Block, model: ModelSpec) -> Block:
    """Return a head whose logits in fp32 are held while backward runs, beside the room of short ones."""
    if not block.output.total:
        return block
    logits = _FP32 * (model.vocab or 0) * (model.sequence_length or 0)
    return replace(block, output=block.output + Saved(loss=logits))
