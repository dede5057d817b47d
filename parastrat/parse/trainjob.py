"""TrainJobs of Kubeflow Trainer: the documents of a YAML text, and the script that each one's pods run."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from parastrat.rules.trainjob_facts import DEFAULT_PORT, nodes_of, processes_of, runs_torch, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_BETWEEN = re.compile(r"^---(?:\s.*)?$")
_KIND = re.compile(r"^kind:\s*[\"']?TrainJob[\"']?\s*(?:#.*)?$", re.MULTILINE)
_COMMAND = "spec.trainer.command"
_ENV = "spec.trainer.env"


def is_trainjob(text: str) -> bool:
    """Whether one of a YAML text's documents is a TrainJob."""
    return _KIND.search(text) is not None


def trainjob_documents(text: str) -> Iterator[str]:
    """Yield each TrainJob of a text, with blank lines for what stands before it."""
    lines: list[str] = []
    blank = 0
    for line in [*text.splitlines(), "---"]:
        if _BETWEEN.match(line) is None:
            lines.append(line)
            continue
        document = "\n".join(lines)
        if is_trainjob(document):
            yield "\n" * blank + document + "\n"
        blank += len(lines) + 1
        lines = []


def pod_script(file: ConfigFile) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return what a pod of a job runs as a shell's script, and where the job states each of its lines.

    Variables that a job states are exported; so are those by which Trainer tells torchrun where the pods
    meet. Where the job leaves the command to its runtime, variables are all.
    """
    words = words_of(file)
    place = file.positions.get(_COMMAND) or file.positions.get("spec.trainer.args") or (1, 1)
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for name, value, where in variables(file):
        lines.append(f"export {name}={shlex.quote(value)}")
        places.append(where)
    if runs_torch(file):
        told = {
            "PET_NNODES": nodes_of(file),
            "PET_NPROC_PER_NODE": processes_of(file),
            "PET_MASTER_PORT": DEFAULT_PORT,
        }
        lines += [
            f"export {name}={value if value is not None else '$OF_TRAINER'}" for name, value in told.items()
        ]
        places += [place] * len(told)
    if words:
        lines.append(shlex.join(words))
        places.append(place)
    return "\n".join(lines) + "\n", tuple(places)


def variables(file: ConfigFile) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the names, values and places of the variables of a job; what a cluster fills in is ``$``."""
    stated = file.get(_ENV)
    for index, entry in enumerate(stated if isinstance(stated, list) else ()):
        if isinstance(entry, dict) and str(entry.get("name", "")).isidentifier():
            place = file.positions.get(f"{_ENV}.{index}") or file.positions[_ENV]
            yield entry["name"], _written(entry.get("value")), place


def _written(value: Any) -> str:
    """Return a value as a pod has it; ``$(NAME)`` is another variable there."""
    if value is None:
        return "$OF_CLUSTER"
    return str(value).lower() if isinstance(value, bool) else str(value)
