"""PS571: variables that a script sets for what it starts, and does not hand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rank_facts import OF_JOB, OF_RANK
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

#: beginnings of names that libraries read, and whole ones
_READ = ("NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "PET_", "OMPI_", "UCX_", "FI_", "HF_HUB_", "HF_DATASETS_")
_READ_WHOLE = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GLIBC_TUNABLES",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_TOKEN",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
)


@file_rule(
    "PS571",
    Severity.WARNING,
    ConfigFormat.SCRIPT,
    source="https://www.gnu.org/software/bash/manual/html_node/Environment.html",
)
def variables_are_handed_on(file: ConfigFile) -> Iterator[Hit]:
    """A variable that a library reads is exported.

    A shell keeps what is set without ``export`` to itself, unless the name came to it exported. The setting
    stands in the script, is believed, and reaches no process.
    """
    # no launcher of torch's tells ranks theirs
    wanted = (*_READ_WHOLE, *((*OF_JOB, *OF_RANK) if file.get("ranks") else ()))
    started = any(file.get(section) is not None for section in ("started", "ranks"))
    for name, value in (file.get("kept") or {}).items() if started else ():
        if name in wanted or name.startswith(_READ):
            yield Hit(
                message=f"{name} is set, and not exported: nothing that the script starts sees it",
                fix=f"write export {name}={value}",
                key=f"kept.{name}",
            )
