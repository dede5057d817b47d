"""What rules read of ranks that srun or mpirun starts: how many, where, and what they are handed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.rules.launch_facts import agents_of, count_of, nodes_of_step

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile

#: what torch.distributed reads of each process, and what is the same for all of a job
OF_RANK = ("RANK", "LOCAL_RANK")
OF_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")


def _step(file: ConfigFile) -> ConfigFile:
    """Return a script with its ranks as what srun starts, which the facts of launches read."""
    return replace(file, table={**file.table, "started": file.get("ranks")})


def nodes_of_ranks(file: ConfigFile) -> int | None:
    """Return the nodes on which srun starts ranks; None if unknown, or if it does not."""
    return nodes_of_step(_step(file)) if file.get("ranks.by") == "srun" else None


def ranks_of_node(file: ConfigFile) -> int | None:
    """Return the ranks that srun starts on a node; None if unknown."""
    return agents_of(_step(file))


def ranks_of(file: ConfigFile) -> int | None:
    """Return the ranks that a command starts; None if unknown."""
    if file.get("ranks.by") == "mpirun":
        return None if file.get("ranks.open") else count_of(file, "ranks.n")
    nodes, of_node = nodes_of_ranks(file), ranks_of_node(file)
    stated = count_of(file, "ranks.ntasks") or count_of(file, "sbatch.ntasks")
    if stated or nodes is None or of_node is None:
        return stated
    return nodes * of_node


def starts_several(file: ConfigFile) -> bool:
    """Whether a command starts several ranks, and no other one of the script is known to start some."""
    return file.get("ranks.only") == "yes" and (
        (ranks_of(file) or 0) > 1 or (nodes_of_ranks(file) or 0) > 1
    )


def exported(file: ConfigFile, name: str) -> str | None:
    """Return a variable's value if the script hands it on to what it starts."""
    value = file.get(f"env.{name}")
    is_exported = name in str(file.get("ranks.exported") or "").split()
    return value if isinstance(value, str) and is_exported else None


def is_of_torch(file: ConfigFile) -> bool:
    """Whether what a script exports shows that its ranks meet by torch.distributed."""
    return any(exported(file, name) is not None for name in (*OF_JOB, *OF_RANK))
