"""PS667 and PS668: numbers and switches in quotes, as ``accelerate launch`` uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.accelerate import starts_several
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_SOURCE = "https://github.com/huggingface/accelerate/blob/16cb6eb/src/accelerate"
_FORMAT = ConfigFormat.ACCELERATE
#: sizes that are compared with 1 before they become variables of the environment; the others are not
_COMPARED = tuple(f"parallelism_config.parallelism_config_{axis}_size" for axis in ("cp", "sp"))
_SENDING = "fsdp_config.fsdp_sync_module_states"
#: kinds of earlier versions among them
_TPU = ("XLA", "TPU")


@file_rule("PS667", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/launch.py")
def numbers_that_are_reckoned_with_have_no_quotes(file: ConfigFile) -> Iterator[Hit]:
    """Numbers that accelerate reckons with stand without quotes.

    What stands in quotes is text, which accelerate hands on as it is. Most uses make text of it anyway; but
    dividing it, comparing it and asking for a port stop with a TypeError. On one machine num_processes is
    only handed on.
    """
    for key, use in _reckoned(file):
        if key in file.quoted:
            name, value = key.rpartition(".")[2], file.get(key)
            yield Hit(
                message=f"{name} '{value}' is text, {use}: it stops with a TypeError",
                fix=f"write {name}: {value} without quotes",
                key=key,
            )


def _reckoned(file: ConfigFile) -> Iterator[tuple[str, str]]:
    """Yield the numbers that this file has accelerate reckon with, and how."""
    kind, machines = str(file.get("distributed_type")), file.number("num_machines") or 1
    if file.get("compute_environment") == "AMAZON_SAGEMAKER" or kind in _TPU:
        return
    compared = "which accelerate compares with 1"
    yield "num_machines", compared
    if file.is_on("use_cpu") or not starts_several(file):
        yield "num_processes", compared
    elif machines > 1:
        yield "num_processes", f"which accelerate divides by num_machines ({machines})"
    if starts_several(file) and (machines == 1 or not file.number("machine_rank")):
        yield "main_process_port", "and no port that accelerate can ask the machine for"
    for key in _COMPARED:
        yield key, compared


@file_rule("PS668", Severity.WARNING, _FORMAT, source=f"{_SOURCE}/commands/launch.py")
def false_has_no_quotes(file: ConfigFile) -> Iterator[Hit]:
    """False in quotes is text, and text counts as true.

    FSDP's other switches, DeepSpeed's and those of fp8 become variables of the environment, where text is
    read as it was meant. These are asked as they stand.
    """
    loads = file.get("fsdp_config.fsdp_cpu_ram_efficient_loading") is not False
    effects = {
        "debug": "debugging is on",
        "use_cpu": "OMP_NUM_THREADS is set as for training on processors",
        **(
            {"tpu_use_cluster": "it starts on the whole pod"}
            if file.get("distributed_type") in _TPU
            else {}
        ),
        **({_SENDING: "weights are sent all the same (FSDP1 says so in a warning)"} if loads else {}),
    }
    for key, effect in effects.items():
        if key in file.quoted and file.get(key) is False:
            name = key.rpartition(".")[2]
            mend = f"remove {name}" if key == _SENDING else f"write {name}: false without quotes"
            yield Hit(message=f"{name} in quotes counts as true: {effect}", fix=mend, key=key)
