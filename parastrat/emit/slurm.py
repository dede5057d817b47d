"""A batch script for Slurm: one task a node, which is torchrun's agent.

Gaudis are the site's: Intel's fork of Slurm calls them gpu
(https://docs.habana.ai/en/latest/Orchestration/SLURM/SLURM.html), others name them hpu
(https://github.com/argonne-lcf/ai-testbed-userdocs/blob/6bd000d/docs/habana/Job-Queuing-and-Submission.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.emit.shell import (
    SCRIPT_USAGE,
    accelerators,
    check_applied,
    check_launch,
    exports,
    plan_check,
    takes_whole_nodes,
    title,
    usage_check,
)
from parastrat.emit.text_file import TextFile
from parastrat.hardware import DeviceType
from parastrat.launch import FIRST_PORT, PORTS
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Case

_SCRIPT = """\
#!/usr/bin/env bash
# {title}
# sbatch --partition=... --account=... --time=... job.sbatch {script}
{directives}
set -euo pipefail

{usage_check}
# Slurm runs a copy of this script, so the plan is sought where sbatch was called
export PARASTRAT_PLAN="${{PARASTRAT_PLAN:-$SLURM_SUBMIT_DIR/plan.toml}}"
{plan_check}
if (( SLURM_NNODES != {nodes} )); then
    echo "job.sbatch: the plan is for {told_nodes}, the allocation has $SLURM_NNODES" >&2
    exit 2
fi

{exports}
# the first node by its name in Slurm; neither this host nor the one that called sbatch need be it
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{hosts%%$'\\n'*}}
# jobs that share a node get ports of their own
port=$(({first_port} + SLURM_JOB_ID % {ports}))

# srun does not inherit --cpus-per-task since Slurm 22.05. In single quotes, SLURMD_NODENAME is expanded
# by each node for itself: the name under which the other nodes find it.
srun --kill-on-bad-exit=1 --cpus-per-task="{cpus}" \\
    bash -c 'exec torchrun --local-addr "$SLURMD_NODENAME" "$@"' torchrun \\
    --nnodes {nodes} --nproc-per-node {ranks} \\
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$port" \\
    "$@"
"""


def emit(case: Case) -> tuple[TextFile, ...]:
    """Return ``job.sbatch`` for Slurm from 22.05 and torchrun of torch 2.11 and later.

    Partition, account and time are the site's: they are given to sbatch. ``plan.toml`` is expected in the
    folder in which sbatch is called, or where ``PARASTRAT_PLAN`` says.

    Raises:
        EmitError: torchrun cannot start this plan, or ``auto_parallelize`` does not apply it.
    """
    check_launch(case)
    check_applied(case)
    launch = case.launch
    text = _SCRIPT.format(
        title=title(case),
        script=SCRIPT_USAGE,
        directives="\n".join(_directives(case)),
        usage_check=usage_check("sbatch job.sbatch"),
        plan_check=plan_check(
            "job.sbatch", "call sbatch in the plan's folder, or set PARASTRAT_PLAN to its absolute path"
        ),
        first_port=FIRST_PORT,
        ports=PORTS,
        nodes=launch.nodes,
        told_nodes=counted(launch.nodes, "node"),
        ranks=launch.ranks_per_node,
        exports=exports(launch),
        cpus="$SLURM_CPUS_ON_NODE" if takes_whole_nodes(case) else "$SLURM_CPUS_PER_TASK",
    )
    return (TextFile(path="job.sbatch", text=text, executable=False),)


def _directives(case: Case) -> Iterator[str]:
    """Yield what Slurm is asked for; it reads comments in between over."""
    launch, kind = case.launch, case.hardware.device.type
    yield "#SBATCH --job-name=parastrat"
    yield f"#SBATCH --nodes={launch.nodes}"
    yield "#SBATCH --ntasks-per-node=1"
    if kind is DeviceType.HPU:
        yield "# Gaudis are gpu in Intel's Slurm; where `sinfo -o %G` shows hpu, instead of the next line:"
        yield f"##SBATCH --gres=hpu:{accelerators(case)}"
    if kind is not DeviceType.CPU:
        yield f"#SBATCH --gpus-per-node={accelerators(case)}"
    if takes_whole_nodes(case):
        # an exclusive node lends its processors, but of its memory only what is asked for; 0 is all
        yield "#SBATCH --exclusive"
        yield "#SBATCH --mem=0"
    else:
        yield f"#SBATCH --cpus-per-task={_share_of_cores(case)}"


def _share_of_cores(case: Case) -> int:
    """Return the cores that the ranks of one node are due; one a rank where the host's are unknown."""
    ranks, cores = case.launch.ranks_per_node, case.hardware.host.cores
    return max(ranks, (cores or 0) * ranks // case.hardware.devices_per_node)
