"""Jobs of Kubeflow: the documents of a YAML text, and the scripts that each one's pods run."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from parastrat.config_file import ConfigFormat
from parastrat.rules.jobs import pods_of
from parastrat.rules.pod_facts import entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile
    from parastrat.rules.pod_facts import Pods

_BETWEEN = re.compile(r"^---(?:\s.*)?$")
_KINDS = {"TrainJob": ConfigFormat.TRAINJOB, "PyTorchJob": ConfigFormat.PYTORCHJOB}
_KIND = re.compile(rf"^kind:\s*[\"']?({'|'.join(_KINDS)})[\"']?\s*(?:#.*)?$", re.MULTILINE)


def job_format(text: str) -> ConfigFormat | None:
    """Return the format of the first job among a YAML text's documents; None where there is none."""
    found = _KIND.search(text)
    return None if found is None else _KINDS[found[1]]


def job_documents(text: str) -> Iterator[tuple[ConfigFormat, str]]:
    """Yield each job of a text with its format, and with blank lines for what stands before it."""
    lines: list[str] = []
    blank = 0
    for line in [*text.splitlines(), "---"]:
        if _BETWEEN.match(line) is None:
            lines.append(line)
            continue
        document = "\n".join(lines)
        format_ = job_format(document)
        if format_ is not None:
            yield format_, "\n" * blank + document + "\n"
        blank += len(lines) + 1
        lines = []


def pod_scripts(file: ConfigFile) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    """Yield what the pods of a job run as a shell's scripts, and where the job states each of their lines.

    Variables that a job states are exported; so are those that its operator sets, which stand in place of a
    job's own. Where the job leaves the command to its runtime or image, variables are all.
    """
    for pods in pods_of(file):
        stated = [file.positions.get(f"{pods.key}.{name}") for name in ("command", "args")]
        place = next(filter(None, stated), (1, 1))
        lines: list[str] = []
        places: list[tuple[int, int]] = []
        for name, value, where in _variables(file, pods):
            lines.append(f"export {name}={shlex.quote(value)}")
            places.append(where)
        # what only the cluster knows stays a variable
        lines += [
            f"export {name}={'$OF_CLUSTER' if value is None else shlex.quote(value)}"
            for name, value in pods.told.items()
        ]
        places += [place] * len(pods.told)
        if pods.words:
            lines.append(shlex.join(pods.words))
            places.append(place)
        yield "\n".join(lines) + "\n", tuple(places)


def _variables(file: ConfigFile, pods: Pods) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the names, values and places of the variables of a job; what a cluster fills in is ``$``."""
    for key, entry in entries(file.get(pods.key), "env", pods.key):
        if str(entry.get("name", "")).isidentifier():
            place = file.positions.get(key) or file.positions[f"{pods.key}.env"]
            yield entry["name"], _written(entry.get("value")), place


def _written(value: Any) -> str:
    """Return a value as a pod has it; ``$(NAME)`` is another variable there."""
    if value is None:
        return "$OF_CLUSTER"
    return str(value).lower() if isinstance(value, bool) else str(value)
