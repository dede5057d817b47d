"""What the rules of launch scripts read of one launch: its nodes, its GPUs, and what is unknown of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import whole_number

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile

#: ``gpu:a100:4``, ``gpu:4`` or ``gpu``, of which there is one, in a list; and ``a100:4`` or ``4``
_GRES = re.compile(r"(?:^|,)gpu(?::[A-Za-z][\w-]*)?(?::(\d{1,6}))?(?=[,(]|$)")
_PER_NODE = re.compile(r"(?:[A-Za-z][\w-]*:)?(\d{1,6})$")


def count_of(file: ConfigFile, key: str) -> int | None:
    """Return a stated whole number; None for what only the shell knows."""
    return whole_number(file.get(key))


def nodes_of(file: ConfigFile) -> int | None:
    """Return the nodes of a launch: torchrun's, else those that it is started on; None if unknown.

    A launch that no srun starts on other nodes has the one that its script runs on, unless it is the only
    one, and was meant for all.
    """
    told = count_of(file, "torchrun.nnodes") or count_of(file, "started.nodes")
    if told is not None or is_partly_unknown(file):
        return told
    if file.get("started.by") == "script" and file.get("started.only") == "no":
        return None
    return count_of(file, "sbatch.nodes")


def is_partly_unknown(file: ConfigFile) -> bool:
    """Whether some of torchrun's options stand in a variable of the shell, or in its own variables."""
    environment = file.get("env") or {}
    return file.get("started.options") is not None or any(name.startswith("PET_") for name in environment)


def counted(nodes: int | None) -> str:
    """Return so many nodes in words."""
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def endpoint_of(file: ConfigFile) -> tuple[str, str] | None:
    """Return the option that says where the nodes meet, with its value."""
    for name in ("rdzv-endpoint", "master-addr"):
        value = file.get(f"torchrun.{name}")
        if isinstance(value, str):
            return name, value
    return None


def gpus_of(file: ConfigFile, key: str) -> int | None:
    """Return the GPUs of a node that ``sbatch.gpus-per-node`` or ``sbatch.gres`` asks for; else None."""
    stated = (_GRES if key == "sbatch.gres" else _PER_NODE).search(str(file.get(key) or ""))
    return None if stated is None else int(stated[1] or 1)
