"""A shell script around torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.emit.shell import (
    check_applied,
    check_launch,
    exports,
    head,
    meeting_check,
    run_call,
    run_usage,
)
from parastrat.emit.text_file import TextFile

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.launch import Launch

_ONE_NODE = """\
exec torchrun --standalone --nproc-per-node {ranks} {what}
"""

_NODES = """\
exec torchrun --nnodes {nodes} --nproc-per-node {ranks} \\
    --rdzv-id "${{RDZV_ID:-parastrat}}" --rdzv-backend c10d --rdzv-endpoint "$HEAD:${{RDZV_PORT:-29500}}" \\
    {what}
"""


def emit(case: Case) -> tuple[TextFile, ...]:
    """Return ``run.sh`` for torchrun of torch 2.11 and later; it expects ``plan.toml`` beside it.

    Raises:
        EmitError: torchrun cannot start this plan, or ``auto_parallelize`` does not apply it.
    """
    check_launch(case)
    check_applied(case)
    launch = case.launch
    lines = (
        head(case, "run.sh", run_usage(launch), run_call(launch)),
        exports(launch),
        start(launch, '"$@"'),
    )
    return (TextFile(path="run.sh", text="\n".join(lines), executable=True),)


def start(launch: Launch, what: str) -> str:
    """Return the lines that start torchrun on what the words say, on each node."""
    command = (_ONE_NODE if launch.nodes == 1 else _NODES).format(
        nodes=launch.nodes, ranks=launch.ranks_per_node, what=what
    )
    return meeting_check(launch) + command
