"""PS641 to PS649: what DeepSpeed's engine refuses when it starts, beside the batch and the offloading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_SOURCE = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime"
_FORMAT = ConfigFormat.DEEPSPEED

_ZERO = "zero_optimization"
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: optimizers that compress gradients themselves
_ONE_BIT = {"onebitadam": "1-bit Adam", "zerooneadam": "0/1 Adam", "onebitlamb": "1-bit Lamb"}
#: optimizers that ZeRO is tested with, by the names that select them
_TESTED = {"adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw"}
#: settings of ZeRO that stage 3 alone reads
_OF_STAGE_3 = ("zero_quantized_weights", "zero_quantized_nontrainable_weights")


def _stage(file: ConfigFile) -> int:
    """Return the stage of ZeRO; 0 where nothing is said, 1 for the older form of the table."""
    return 1 if file.is_on(_ZERO) else file.number(f"{_ZERO}.stage") or 0


def _optimizer(file: ConfigFile) -> str:
    stated = file.get("optimizer.type")
    return stated.lower() if isinstance(stated, str) else ""


@file_rule(
    "PS641",
    Severity.ERROR,
    _FORMAT,
    source="https://www.deepspeed.ai/docs/config-json/#elastic-training-config-v01-and-v02",
)
def elastic_training_sets_the_batch(file: ConfigFile) -> Iterator[Hit]:
    """Elastic training finds the batch by itself.

    It chooses batch, micro-batch and accumulation for the GPUs that are there. DeepSpeed stops where they
    are stated as well, unless ignore_non_elastic_batch_info is set.
    """
    section = "elasticity"
    stated = [name for name in _BATCH_KEYS if file.get(name) is not None]
    ignored = file.is_on(f"{section}.ignore_non_elastic_batch_info")
    if file.is_on(f"{section}.enabled") and stated and not ignored:
        yield Hit(
            message=f"{', '.join(stated)} beside elasticity",
            fix=f'remove {", ".join(stated)}, or write "ignore_non_elastic_batch_info": true in elasticity',
            key=stated[0],
        )


@file_rule("PS642", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/engine.py")
def apex_amp_stands_alone(file: ConfigFile) -> Iterator[Hit]:
    """Apex's amp works neither with ZeRO nor with fp16 or bf16.

    It keeps master weights of its own, where the engine's would be. fp16 does the same within DeepSpeed.
    """
    others = [name for name in ("fp16", "bf16") if file.is_on(f"{name}.enabled")]
    if _stage(file) > 0:
        others.append(f"ZeRO stage {_stage(file)}")
    if file.is_on("amp.enabled") and others:
        yield Hit(message=f"amp with {' and '.join(others)}", fix="remove amp, and enable fp16", key="amp")


@file_rule("PS643", Severity.ERROR, _FORMAT, source="https://www.deepspeed.ai/tutorials/onebit-adam/")
def one_bit_optimizers_reduce_by_themselves(file: ConfigFile) -> Iterator[Hit]:
    """One-bit optimizers do not work with ZeRO.

    They replace the reduction of gradients by a compressed one of momenta, which every rank must hold
    whole. ZeRO reduces and partitions them itself.
    """
    name = _ONE_BIT.get(_optimizer(file))
    if name is not None and _stage(file) > 0:
        yield Hit(
            message=f"{name} with ZeRO stage {_stage(file)}",
            fix='write "stage": 0, or "type": "AdamW"',
            key="optimizer.type",
        )


@file_rule("PS644", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/config.py")
def stage_3_averages_gradients(file: ConfigFile) -> Iterator[Hit]:
    """ZeRO-3 averages gradients.

    gradient_allreduce_op sum leaves them undivided, which stages 0 to 2 can do. At stage 3 DeepSpeed stops
    when it reads the file.
    """
    if str(file.get("gradient_allreduce_op")).lower() == "sum" and _stage(file) == 3:
        yield Hit(
            message="gradient_allreduce_op sum at stage 3",
            fix='write "mean", and divide the loss',
            key="gradient_allreduce_op",
        )


@file_rule("PS645", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/config.py")
def short_master_weights_are_of_zero(file: ConfigFile) -> Iterator[Hit]:
    """Master weights in a short format need ZeRO.

    Its optimizers alone can hold them so; and states of the optimizer in bf16 need master weights in bf16.
    """
    for key in (
        "fp16.fp16_master_weights_and_grads",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
    ):
        if file.is_on(key) and _stage(file) == 0:
            yield Hit(message=f"{key} at stage 0", fix='write "stage": 1 or more', key=key)
    states, weights = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if file.is_on(states) and not file.is_on(weights):
        yield Hit(
            message="bf16_optimizer_states without bf16_master_weights_and_grads",
            fix='write "bf16_master_weights_and_grads": true',
            key=states,
        )


@file_rule("PS646", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/zero/config.py")
def parts_are_offloaded_at_stage_3(file: ConfigFile) -> Iterator[Hit]:
    """Offloading a part of the optimizer needs stage 3.

    Stages 1 and 2 update all of it on the host. A ratio below 1 is ZeRO-Offload++, of stage 3 alone.
    """
    key = f"{_ZERO}.offload_optimizer.ratio"
    ratio = file.get(key)
    if isinstance(ratio, int | float) and not isinstance(ratio, bool) and ratio < 1 and _stage(file) != 3:
        yield Hit(
            message=f"offload_optimizer.ratio {ratio} at stage {_stage(file)}",
            fix='write "stage": 3, or remove ratio',
            key=key,
        )


@file_rule("PS647", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/zero/utils.py")
def zero_knows_the_optimizer(file: ConfigFile) -> Iterator[Hit]:
    """ZeRO refuses optimizers that it was not tested with.

    It updates flat partitions, which is right for optimizers that treat every element alike. Those that
    read the shape of a parameter, or its norm, give other results. zero_allow_untested_optimizer says that
    you know.
    """
    name = _optimizer(file)
    allowed = file.is_on("zero_allow_untested_optimizer")
    if name and name not in _TESTED and name not in _ONE_BIT and _stage(file) > 0 and not allowed:
        yield Hit(
            message=f"optimizer {file.get('optimizer.type')} with ZeRO stage {_stage(file)}",
            fix='write "type": "AdamW", or "zero_allow_untested_optimizer": true',
            key="optimizer.type",
        )


@file_rule("PS648", Severity.WARNING, _FORMAT, source="https://www.deepspeed.ai/tutorials/zeropp/")
def quantized_weights_are_gathered(file: ConfigFile) -> Iterator[Hit]:
    """Quantized weights are of stage 3.

    ZeRO++ quantizes what is gathered. Below stage 3 nothing is, and the setting is passed over.
    """
    for name in _OF_STAGE_3:
        if file.is_on(f"{_ZERO}.{name}") and _stage(file) != 3:
            yield Hit(
                message=f"{name} at stage {_stage(file)}", fix='write "stage": 3', key=f"{_ZERO}.{name}"
            )


@file_rule("PS649", Severity.WARNING, _FORMAT, source=f"{_SOURCE}/engine.py")
def gradients_are_clipped_by_the_engine(file: ConfigFile) -> Iterator[Hit]:
    """Gradients are clipped by gradient_clipping.

    The norm is one over all ranks and partitions, which the engine knows and an optimizer does not.
    DeepSpeed stops at max_grad_norm among the params where it makes the optimizer; of one that the script
    passes to it nobody reads them.
    """
    norm = file.get("optimizer.params.max_grad_norm")
    if norm is not None:
        yield Hit(
            message="max_grad_norm among the optimizer's params",
            fix=f'write "gradient_clipping": {norm} at the top, and remove max_grad_norm',
            key="optimizer.params.max_grad_norm",
        )
