"""PS524 and PS525: variables of the environment whose values nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import case_rule

if TYPE_CHECKING:
    from parastrat.case import Case

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug"
_TORCH = "https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug"

#: NCCL reads them in any case of letters: src/debug.cc of 2.30.7
_LEVELS = ("VERSION", "WARN", "INFO", "TRACE", "ABORT")
#: torch as well: c10d/debug.cpp of 2.13
_CHECKS = ("OFF", "INFO", "DETAIL")


@case_rule("PS524", Severity.WARNING, source=_NCCL)
def nccl_log_has_a_level(case: Case) -> Hit | None:
    """NCCL_DEBUG is VERSION, WARN, INFO or TRACE.

    NCCL takes any other word for no logging at all: the error that the variable was set for is not
    printed.
    """
    level = case.launch.env.get("NCCL_DEBUG", "")
    if not level or FILLED_IN.search(level) or level.upper() in _LEVELS:
        return None
    meant = next((known for known in _LEVELS if level.upper().startswith(known)), "WARN")
    return Hit(
        message=f"NCCL_DEBUG={level} is no level: NCCL prints nothing", fix=f"set NCCL_DEBUG={meant}"
    )


@case_rule("PS525", Severity.ERROR, source=_TORCH)
def torchs_checks_have_a_level(case: Case) -> Hit | None:
    """TORCH_DISTRIBUTED_DEBUG is OFF, INFO or DETAIL.

    Any other value, 1 among them, stops every process as soon as it imports torch.distributed.
    """
    level = case.launch.env.get("TORCH_DISTRIBUTED_DEBUG", "")
    if not level or FILLED_IN.search(level) or level.upper() in _CHECKS:
        return None
    return Hit(
        message=f"TORCH_DISTRIBUTED_DEBUG={level} is no level: torch stops",
        fix="remove it, or set INFO or DETAIL",
    )
