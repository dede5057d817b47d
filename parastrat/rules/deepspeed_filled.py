"""PS681 to PS684: what transformers and accelerate fill in, and what DeepSpeed's schedules need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.deepspeed import autos
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_PLUGIN = "https://github.com/huggingface/accelerate/blob/16cb6eb/src/accelerate/utils/dataclasses.py"
_SCHEDULES = "https://github.com/deepspeedai/DeepSpeed/blob/edaa722/deepspeed/runtime/lr_schedules.py"
_ADAM = "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html"
_FORMAT = ConfigFormat.DEEPSPEED

_ZERO = "zero_optimization"
#: of transformers/integrations/deepspeed.py and accelerate's plugin and accelerator.py; accelerate puts a
#: number of its own in place of steps_per_print
_FILLED = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "fp16.enabled",
        "bf16.enabled",
        "bfloat16.enabled",
        "amp.enabled",
        "amp.opt_level",
        *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
        *(
            f"scheduler.params.{name}"
            for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
        ),
        *(
            f"{_ZERO}.{name}"
            for name in (
                "stage",
                "reduce_bucket_size",
                "stage3_prefetch_bucket_size",
                "stage3_param_persistence_threshold",
                "stage3_gather_16bit_weights_on_model_save",
            )
        ),
        *(
            f"{_ZERO}.offload_{what}.{name}"
            for what in ("optimizer", "param")
            for name in ("device", "nvme_path")
        ),
    }
)
#: tables whose values no other reader knows as auto
_TABLES = ("fp16", "bf16", "bfloat16", "optimizer", "scheduler", _ZERO, "activation_checkpointing")
#: of DeepSpeed itself
_OWN_AUTO = (f"{_ZERO}.zenflow",)
#: what schedules take without a default
_NEEDED = {
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
}
_AMOUNTS = {
    "optimizer.params": ("lr", "eps", "weight_decay"),
    "scheduler.params": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"),
}


@file_rule("PS681", Severity.ERROR, _FORMAT, source=_PLUGIN)
def auto_is_of_some_keys(file: ConfigFile) -> Iterator[Hit]:
    """The value auto stands only where somebody fills it in.

    transformers and accelerate know a number for the batch, clipping, formats, the optimizer's and the
    warm-up's, the stage, offloading, and three sizes that follow from the model's width. At auto elsewhere
    accelerate stops ("not found in kwargs"), and so does DeepSpeed.
    """
    for key in autos(file.table):
        if key.partition(".")[0] in _TABLES and key not in _FILLED and not key.startswith(_OWN_AUTO):
            yield Hit(
                message=f'{key} "auto": transformers and accelerate do not fill it in',
                fix=f"write a value, or remove {key}",
                key=key,
            )


@file_rule("PS682", Severity.ERROR, _FORMAT, source=_PLUGIN)
def plugins_want_a_stage(file: ConfigFile) -> Iterator[Hit]:
    """Transformers and accelerate want zero_optimization in the file.

    They stop without it ("Please specify the ZeRO optimization config"), also where no stage is meant. A
    file with auto is for them alone. Autotuning tries stages of its own.
    """
    found = next(iter(autos(file.table)), None)
    if found is not None and file.get(_ZERO) is None and file.get("autotuning") is None:
        yield Hit(
            message=f'"auto" without {_ZERO}: transformers and accelerate stop',
            fix=f'add "{_ZERO}": {{"stage": 0}}, or the stage that is meant',
            key=found,
        )


@file_rule("PS683", Severity.ERROR, _FORMAT, source=_SCHEDULES)
def schedules_know_their_steps(file: ConfigFile) -> Iterator[Hit]:
    """Schedules that fall need to know how long, and cycles between which rates.

    These params have no default. DeepSpeed stops when it makes the schedule; transformers fills in
    total_num_steps where it stands as auto, not where it is absent.
    """
    kind, params = str(file.get("scheduler.type")), file.get("scheduler.params")
    for name in _NEEDED.get(kind, ()):
        if not isinstance(params, dict) or params.get(name) is None:
            yield Hit(
                message=f"{kind} without {name}",
                fix=f"add {name} to its params"
                + (', or "auto" for transformers' if "_num_" in name else ""),
                key="scheduler.type",
            )


@file_rule("PS684", Severity.ERROR, _FORMAT, source=_ADAM)
def params_are_numbers(file: ConfigFile) -> Iterator[Hit]:
    """Rates and steps have no quotes.

    params go to the optimizer and the schedule as they stand. Text is compared with a number there, and
    stops with a TypeError.
    """
    for table, names in _AMOUNTS.items():
        for name in names:
            value = file.get(f"{table}.{name}")
            if isinstance(value, str) and value != "auto":
                yield Hit(
                    message=f"{name} is text: '{value}'",
                    fix=f'write "{name}": {value} without quotes',
                    key=f"{table}.{name}",
                )
