"""What the files of several launchers have in common."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from parastrat.emit.text_file import EmitError
from parastrat.launch import YOUR_SCRIPT
from parastrat.plan import Backend
from parastrat.rules.runtime_support import refusals_of
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.launch import Launch

#: what the usage of every script has behind its name
SCRIPT_USAGE = f"{YOUR_SCRIPT} [its arguments]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def title(case: Case) -> str:
    """Return one line that says what a script runs; safe in a comment."""
    plan, launch = case.plan, case.launch
    mesh = f" ({plan.mesh})" if plan.mesh.world_size > 1 else ""
    words = (
        f"{plan.strategy}{mesh} on {case.hardware.name}: "
        f"{counted(launch.nodes, 'node')} of {counted(launch.ranks_per_node, 'rank')}"
    )
    return " ".join(words.split())


def check_launch(case: Case) -> None:
    """Refuse a plan that torchrun cannot start.

    Raises:
        EmitError: for the backend mpi, and what ``check_ranks`` refuses.
    """
    if case.plan.backend is Backend.MPI:
        raise EmitError(
            "the plan's backend is mpi, whose processes mpirun starts, not torchrun",
            hint="emit it --to mpirun; or enable IP over InfiniBand and plan again: Gloo then uses that "
            "interface",
        )
    check_ranks(case)


def check_ranks(case: Case) -> None:
    """Refuse a launch that no launcher can start for its plan.

    Raises:
        EmitError: for a launch of another size than the plan, or an environment variable that no shell can
            export.
    """
    plan, launch = case.plan, case.launch
    if launch.world_size != plan.mesh.world_size:
        raise EmitError(
            f"the plan is for {plan.mesh.world_size} ranks ({plan.mesh}), but [launch] starts "
            f"{launch.nodes} x {launch.ranks_per_node} = {launch.world_size}",
            hint="set nodes and ranks_per_node in [launch], or plan again",
        )
    for name in launch.env:
        if not _NAME.fullmatch(name):
            raise EmitError(
                f"{name!r} in the launch's env is no name of an environment variable",
                hint="use letters, digits and _, not beginning with a digit",
            )


def check_applied(case: Case) -> None:
    """Refuse a plan that the started script's ``auto_parallelize`` would refuse.

    Raises:
        EmitError: with the nearest that it applies.
    """
    for finding in refusals_of(case.plan, case.model):
        raise EmitError(
            f"a script that is started for this plan would refuse it: {finding.message} ({finding.code})",
            hint=finding.fix,
        )


def takes_whole_nodes(case: Case) -> bool:
    """Return whether a plan leaves no device of its nodes to others."""
    return case.launch.ranks_per_node == case.hardware.devices_per_node


def accelerators(case: Case) -> int:
    """Return how many accelerators a node's ranks need, of which several ranks may share one."""
    shared = case.hardware.accelerators_per_node if takes_whole_nodes(case) else None
    return shared or case.launch.ranks_per_node


def usage_check(script: str) -> str:
    """Return lines that demand the training script as first argument."""
    return f"""\
if (( $# == 0 )); then
    echo "usage: {script} {SCRIPT_USAGE}" >&2
    exit 2
fi
"""


def run_usage(launch: Launch) -> str:
    """Return how ``run.sh`` is called, on each of its nodes."""
    if launch.nodes == 1:
        return f"./run.sh {SCRIPT_USAGE}"
    return f"on each of the {launch.nodes} nodes: HEAD=first-node ./run.sh {SCRIPT_USAGE}"


def run_call(launch: Launch) -> str:
    """Return the same, as far as the training script, for whoever leaves that out."""
    return "run.sh" if launch.nodes == 1 else "HEAD=node run.sh"


def meeting_check(launch: Launch) -> str:
    """Return lines of ``run.sh`` that demand the name of the node where several meet."""
    nodes = launch.nodes
    if nodes == 1:
        return ""
    return f"""\
# without the head's name every node would wait for the others at its own door
if [[ -z "${{HEAD:-}}" ]]; then
    echo "run.sh: HEAD is not set: give the first node's name or address, the same on all {nodes} nodes" >&2
    exit 2
fi

"""


def plan_check(script: str, mend: str) -> str:
    """Return lines that demand the plan file."""
    return f"""\
if [[ ! -f "$PARASTRAT_PLAN" ]]; then
    echo "{script}: there is no $PARASTRAT_PLAN: {mend}" >&2
    exit 2
fi
"""


def head(case: Case, script: str, usage: str, call: str) -> str:
    """Return how a script begins that is called on a node, with its plan beside it.

    Args:
        case: what it runs.
        script: its name.
        usage: how it is called, as a comment.
        call: the same, as far as the training script, for whoever leaves that out.
    """
    return f"""\
#!/usr/bin/env bash
# {title(case)}
# {usage}
set -euo pipefail

{usage_check(call)}
# auto_parallelize reads the plan that this variable names: the one beside this script
PARASTRAT_PLAN="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)/plan.toml"
export PARASTRAT_PLAN
{plan_check(script, f"put the plan beside {script}")}"""


def variables(launch: Launch) -> list[str]:
    """Return the lines that set what every rank needs in its environment."""
    return [f"export {name}={shlex.quote(value)}" for name, value in launch.env.items()]


def exports(launch: Launch) -> str:
    """Return the lines that set what every rank of torchrun's agents needs in its environment."""
    return "\n".join(
        [
            *variables(launch),
            "# the ranks' store apart from the agents': else a restart often finds the dead one's keys",
            "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            "",
        ]
    )
