"""What a job's pods have in common, whichever operator starts them: number, processes, devices, memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.config_file import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.config_file import ConfigFile

#: names of devices that plugins hand out
_DEVICE = re.compile(r"(?:.+/(?:gpu|gaudi|mig-.+)|google\.com/tpu)$")
#: what starts processes, or reads what the pods are told and does
_STARTING = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|mpirun|mpiexec|parastrat|tune|ray|"
    r"horovodrun|lightning|torchx)\b"
)
_TORCHRUN = re.compile(r"\b(?:torchrun|torch\.distributed\.run)\b")
_PYTHON = re.compile(r"(?:^|[\s/;&|])python[\d.]*\s+(?:-\S+\s+)*(?!-)\S+")
#: a program that is written out in its command
_INLINE = re.compile(r"\bpython[\d.]*\s+(?:-\S+\s+)*-c\s")
_TORCH = re.compile(r"\btorch\b")
#: what reads the variables by itself
_READING = "PET_"
#: one of the variables, as shells and as Kubernetes write it
_VARIABLE = re.compile(r"\$[{(]?(\w+)[)}]?")
_OPTION = "--{}(?:=|\\s+)[\"']?([^\\s\"']+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many processes a pod has, or by what torchrun counts them, and where that is said."""

    #: a number as text, or a word such as gpu
    stated: str
    key: str
    #: how another number is written there
    written: str

    @property
    def number(self) -> int | None:
        """The number; None for a word."""
        return whole_number(self.stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods of a job that are alike."""

    #: the key of what runs in them, with command, args and env
    key: str
    #: the key of what they ask for, and what stands there
    asking: str
    asked: Any
    #: the command with its arguments; empty where the image or the runtime has it
    words: tuple[str, ...]
    #: of the whole job, and of this kind; None where somebody else says how many
    nodes: int | None
    alike: int | None
    #: what the job says of their processes
    count: Count | None
    #: who tells torchrun by variables where they meet; None where nobody is known to
    teller: str | None
    #: the variables that the operator sets; None for a value that it alone knows
    told: Mapping[str, str | None]
    #: whether a command that starts no processes is told of the others, as one of the job's processes
    is_process: bool
    #: what is mounted at /dev/shm, with its keys; an empty one stands elsewhere
    shared_memory: tuple[tuple[str, Mapping[str, Any]], ...]
    #: whether nothing else is mounted there, as far as anybody can see
    is_memory_seen: bool
    #: whether the job states all of its pods, and no runtime the rest
    is_whole: bool

    @property
    def line(self) -> str:
        """The command in one line."""
        return " ".join(self.words)

    @property
    def is_torchruns(self) -> bool:
        """Whether torchrun starts the processes."""
        return _TORCHRUN.search(self.line) is not None

    @property
    def is_alone(self) -> bool:
        """Whether Python runs a script by itself, which starts no processes that are seen."""
        line = self.line
        if _INLINE.search(line) is not None and _TORCH.search(line) is None:
            return False  # it trains nothing, or by what it imports
        return _STARTING.search(line) is None and _PYTHON.search(line) is not None and _READING not in line

    @property
    def is_numbered(self) -> bool:
        """Whether nodes have the numbers that they are told, and not those that a rendezvous gives them."""
        backend = self.option("rdzv-backend") or self.told.get("PET_RDZV_BACKEND")
        return backend in (None, "static")

    def option(self, name: str) -> str | None:
        """Return what torchrun is told by an option; None for nothing, or another launcher."""
        pattern = _OPTION.format(name.replace("-", "[-_]"))
        found = re.search(pattern, self.line) if self.is_torchruns else None
        variable = None if found is None else _VARIABLE.fullmatch(found[1])
        value = None if variable is None else self.told.get(variable[1])
        return value or (found and found[1])

    def processes(self) -> Count | None:
        """Return the processes of a pod: by torchrun's own option, else as the job says; None: unknown."""
        told = self.option("nproc-per-node")
        if told is not None:
            return Count(stated=told, key=f"{self.key}.command", written="--nproc-per-node {}")
        if self.is_process and self.is_alone:
            fix = "command: [torchrun], with the script among args"
            return Count(stated="1", key=f"{self.key}.command", written=fix)
        return self.count

    def resources(self, kind: str) -> Mapping[str, object]:
        """Return the ``limits`` or ``requests`` of devices, by their names."""
        stated = self.asked.get(kind) if isinstance(self.asked, dict) else None
        if not isinstance(stated, dict):
            return {}
        return {str(name): value for name, value in stated.items() if _DEVICE.match(str(name))}

    def devices(self) -> int | None:
        """Return the devices of a pod; None where nothing is asked for, or no number, or by claims."""
        if not isinstance(self.asked, dict) or self.asked.get("claims"):
            return None
        stated = self.resources("limits") or self.resources("requests")
        counts = [whole_number(str(value)) for value in stated.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def words_at(file: ConfigFile, key: str) -> tuple[str, ...]:
    """Return a command with its arguments; empty where the image or the runtime has the command."""
    command, arguments = file.get(f"{key}.command"), file.get(f"{key}.args")
    if not isinstance(command, list) or not command:
        return ()
    return tuple(str(word) for word in [*command, *(arguments if isinstance(arguments, list) else ())])


def shared_memory_of(pod: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what a pod's containers mount at /dev/shm: keys, and volumes; empty ones stand elsewhere."""
    volumes = {str(volume.get("name")): (place, volume) for place, volume in entries(pod, "volumes", key)}
    for _, container in entries(pod, "containers", key):
        for _, mount in entries(container, "volumeMounts", key):
            if str(mount.get("mountPath")).rstrip("/") == "/dev/shm":  # noqa: S108 - not of this host
                yield volumes.get(str(mount.get("name")), (key, {}))


def entries(table: Any, name: str, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of a list with their keys; nothing where there is no such list."""
    listed = table.get(name) if isinstance(table, dict) else None
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(entry, dict):
            yield f"{key}.{name}.{index}", entry


def label_of(text: str, longest: int) -> str:
    """Return a text in letters that Kubernetes takes for a name, cut to so many of them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].rstrip("-")
