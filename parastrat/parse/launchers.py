"""Where a shell's words start torchrun, ``accelerate launch`` or deepspeed, and what runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: launchers by their tables
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
#: what starts a command on other machines, whatever the job is
REMOTE = frozenset({"ssh", "pdsh", "clush", "mpirun", "mpiexec", "parallel-ssh"})
#: what only speaks of a command
_SPEAKING = frozenset({"echo", "printf", "which", "type", "command", "pip", "man"})
#: what programs do with a package of a launcher's name
_PACKAGING = frozenset({"add", "build", "install", "pull", "remove", "uninstall", "update", "upgrade"})
#: what may stand before a command that it runs
_RUNNING = frozenset(
    {"eval", "exec", "time", "nohup", "env", "then", "do", "else", "if", "!", "{", "(", "sudo", "timeout"}
)
_TIME = re.compile(r"[\d.]+[smhd]?$")
#: programs that run a command here, in an environment, a container or under a watch
_WRAPPERS = frozenset(
    {
        "apptainer",
        "conda",
        "docker",
        "enroot",
        "mamba",
        "micromamba",
        "ncu",
        "nice",
        "nsys",
        "numactl",
        "pdm",
    }
    | {"pipenv", "pixi", "podman", "poetry", "setsid", "shifter", "singularity", "stdbuf", "taskset", "uv"}
)
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
#: a program with words of its own, among which a launcher's name is a word like others
_PROGRAM = re.compile(r"python[\d.]*|.*\.(?:py|sh)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A launcher's name among words."""

    #: one of ``LAUNCHERS``
    launcher: str
    #: the module that python runs; empty where it is a command
    module: str = ""
    #: the place behind its name, where options begin
    end: int


def start_at(words: Sequence[str], place: int) -> Start | None:
    """Return the launcher whose name begins at a place; None where none does."""
    name = words[place].rpartition("/")[2]
    behind = words[place + 1] if place + 1 < len(words) else ""
    if name in ("torchrun", "deepspeed"):
        return Start(launcher=name, end=place + 1)
    if name == "accelerate-launch" or (name == "accelerate" and behind == "launch"):
        return Start(launcher="accelerate", end=place + (1 if name.endswith("launch") else 2))
    if not name.startswith("python"):
        return None
    end = place + (2 if behind == "-u" else 1)
    if len(words) > end + 1 and words[end] == "-m" and words[end + 1] in _MODULES:
        return Start(launcher=_MODULES[words[end + 1]], module=words[end + 1], end=end + 2)
    return None


def is_run(own: Sequence[str], before: Sequence[str]) -> bool:
    """Return whether a word behind others is a command that they run, not an argument of another.

    Args:
        own: the words of the command before it.
        before: those, and the words of what runs the command's shell.
    """
    if own and (own[0] in _SPEAKING or not _PACKAGING.isdisjoint(own)):
        return False
    if not REMOTE.isdisjoint(before) or "srun" in own:
        # a container's runtime may stand between; other programs take a launcher's name for an option
        return not (own and "launcher" in own[-1]) and not any(map(_is_program, own))
    bare = [word for word in own if not stands_before(word)]
    return not bare or (bare[0].rpartition("/")[2] in _WRAPPERS and "launcher" not in own[-1])


def _is_program(word: str) -> bool:
    return _PROGRAM.fullmatch(word.rpartition("/")[2]) is not None


def stands_before(word: str) -> bool:
    """Whether a word only leads to a command: a variable, an option, a time, or what opens a group."""
    is_open = word.endswith(("()", "{", "("))
    return (
        word in _RUNNING or word.startswith(("-", "$")) or "=" in word or is_open or bool(_TIME.match(word))
    )
