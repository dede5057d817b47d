"""PS568 and PS569: Lightning's Trainer as Slurm starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import count_of
from parastrat.rules.rank_facts import nodes_of_ranks, ranks_of_node
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_LIGHTNING = (
    "https://github.com/Lightning-AI/pytorch-lightning/blob/03f57f9c/src/lightning/fabric/plugins/environments/"
    "slurm.py"
)
_FORMAT = ConfigFormat.SCRIPT


def _is_lightnings(file: ConfigFile) -> bool:
    """Whether srun starts a program that Lightning takes for a job of Slurm's."""
    is_interactive = file.get("sbatch.job-name") in ("bash", "interactive")
    return file.get("lightning") is not None and file.get("ranks.by") == "srun" and not is_interactive


@file_rule("PS568", Severity.ERROR, _FORMAT, source=_LIGHTNING, covers=("PIT518",))
def lightning_counts_what_slurm_starts(file: ConfigFile) -> Iterator[Hit]:
    """Lightning's Trainer is told of as many nodes and devices as Slurm starts.

    Its devices are the tasks of a node, its num_nodes, 1 where it is not told of any, the nodes. It stops
    where the numbers differ.
    """
    if not _is_lightnings(file) or file.get("ranks.tasks") is not None:
        return
    program, started = (
        file.get("ranks.program"),
        {"num_nodes": nodes_of_ranks(file), "devices": ranks_of_node(file)},
    )
    for name, option in (("num_nodes", "nodes"), ("devices", "ntasks-per-node")):
        told, number = file.get(f"lightning.{name}"), started[name]
        if told is None or number is None or told == number:
            continue
        yield Hit(
            message=f"{program} trains with {name}={told}, and Slurm starts --{option}={number}",
            fix=f"write Trainer({name}={number}), or --{option}={told}",
            key="ranks" if file.get(f"ranks.{option}") is not None else f"sbatch.{option}",
        )


@file_rule("PS569", Severity.ERROR, _FORMAT, source=_LIGHTNING, covers=("PIT519",))
def lightning_wants_tasks_of_a_node(file: ConfigFile) -> Iterator[Hit]:
    """Lightning reads the tasks of a node of SLURM_NTASKS_PER_NODE.

    Slurm sets that where --ntasks-per-node is stated. With --ntasks alone Lightning stops.
    """
    names = ("ranks.ntasks-per-node", "sbatch.ntasks-per-node", "env.SLURM_NTASKS_PER_NODE")
    if not _is_lightnings(file) or any(file.get(name) is not None for name in names):
        return
    key = next((key for key in ("ranks.ntasks", "sbatch.ntasks") if count_of(file, key)), None)
    tasks, nodes = count_of(file, key) if key else None, nodes_of_ranks(file) or 1
    if tasks is not None and tasks > 1:
        yield Hit(
            message=f"--ntasks={tasks} alone, which Lightning does not read",
            fix=f"write --ntasks-per-node={-(-tasks // nodes)}",
            key=key,
        )
