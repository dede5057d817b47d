"""PS686 and PS687: Megatron-LM's degrees, in accelerate's YAML and behind a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import world_of
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_ARGUMENTS = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/training/arguments.py#L432"

_PLUGIN_KEYS = {
    "tp": "megatron_lm_tp_degree",
    "pp": "megatron_lm_pp_degree",
    "cp": "megatron_lm_context_parallel_size",
}
#: degrees behind a launcher, by their axes
OPTIONS = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
}
#: beside them, on ranks that the others have too
EXPERTS = "expert-model-parallel-size"


def _product(degrees: dict[str, int]) -> tuple[int, str]:
    product = 1
    for degree in degrees.values():
        product *= degree
    return product, " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)


@file_rule("PS686", Severity.ERROR, ConfigFormat.ACCELERATE, source=_ARGUMENTS, covers=("PIT101",))
def megatrons_degrees_divide_the_processes(file: ConfigFile) -> Iterator[Hit]:
    """Megatron-LM's tensor, pipeline and context degrees divide the number of processes.

    What is left of the processes are data-parallel ranks, of which there is a whole number. Megatron stops
    when it starts.
    """
    world = file.number("num_processes")
    if file.get("distributed_type") != "MEGATRON_LM" or world is None:
        return
    keys = {axis: f"megatron_lm_config.{name}" for axis, name in _PLUGIN_KEYS.items()}
    stated = {axis: file.get(key) for axis, key in keys.items()}
    degrees = {axis: 1 if value is None else whole_number(str(value)) for axis, value in stated.items()}
    known = {axis: degree for axis, degree in degrees.items() if degree}
    product, factors = _product(known)
    if world > 0 and len(known) == len(degrees) and world % product:
        yield Hit(
            message=f"{world} processes are no multiple of {factors}",
            fix=f"write num_processes: a multiple of {product}",
            key="num_processes",
        )


@file_rule("PS687", Severity.ERROR, ConfigFormat.SCRIPT, source=_ARGUMENTS, covers=("PIT101", "PIT301"))
def megatrons_options_fit_the_launch(file: ConfigFile) -> Iterator[Hit]:
    """Megatron-LM's degrees divide the processes of the launch, and its batch the data-parallel ranks.

    Tensor, pipeline and context degrees multiply to the ranks of one replica. The global batch is a
    multiple of the micro-batch of all replicas, and tensor parallelism divides the heads. Megatron stops
    when it starts.
    """
    stated, world = file.get("own.options") or {}, world_of(file)
    degrees = {axis: whole_number(stated.get(name, "1")) for axis, name in OPTIONS.items()}
    known = {axis: degree for axis, degree in degrees.items() if degree}
    is_open = file.get("own.open") is not None and file.get("megatron") is None
    if not {*OPTIONS.values()} & stated.keys() or is_open:
        return
    if len(known) < len(degrees):
        return
    product, factors = _product(known)
    heads = whole_number(stated.get("num-attention-heads"))
    # of a mesh that is known the advisor's own rules judge it (PS201)
    is_known = file.get("megatron") is not None and (world is not None or file.devices is not None)
    if not is_known and heads and heads % known["tp"]:
        yield Hit(
            message=f"--{OPTIONS['tp']} {known['tp']} does not divide {heads} heads",
            fix=f"write --{OPTIONS['tp']} with a divisor of {heads}",
            key="own",
        )
    if world is not None and world % product:
        yield Hit(
            message=f"--nnodes x --nproc-per-node is {world}, no multiple of {factors}",
            fix=f"start a multiple of {product} processes, or make the degrees smaller",
            key="own",
        )
    batch, micro = (whole_number(stated.get(f"{name}-batch-size")) for name in ("global", "micro"))
    if not world or world % product or not batch or not micro or "rampup-batch-size" in stated:
        return
    ranks = world // product
    if batch % (micro * ranks):
        yield Hit(
            message=f"--global-batch-size {batch} is no multiple of {micro} x {ranks} data-parallel ranks",
            fix=f"write a multiple of {micro * ranks}",
            key="own",
        )
