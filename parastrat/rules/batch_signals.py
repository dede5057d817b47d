"""PS537: the signal by which Slurm announces the end of a job's time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launchers import launcher_of, reaches_others
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_SIGNAL = re.compile(r"(?:([RB]+):)?(?:SIG)?([A-Z]+[12]?|\d+)(?:@\d+)?", re.IGNORECASE)
#: those that end a shell which does not trap them, by their numbers
_NAMES = {"1": "HUP", "10": "USR1", "12": "USR2", "15": "TERM"}
_TRAP = re.compile(r"\s*trap\s+(.*)")
#: what starts a step, or processes in another way that Slurm may know
_STEPS = re.compile(r"\b(?:srun|mpirun|mpiexec|prun)\b")
#: what may bring a trap, but for what sets up an environment, or takes the shell's place
_ELSEWHERE = re.compile(
    r"\btrap\b|\beval\b|\bexec\b"
    r"|(?:\bsource|(?:^|[;&|])\s*\.)\s+(?!\S*(?:activate|conda\.sh|mamba\.sh|\.bashrc|modules?\.sh)\b)"
)
#: what leaves the shell free to answer
_FREE = re.compile(r"(?<![&>\d])&(?![&>\d])|\bwait\b|\bcoproc\b|\bexec\b")
#: a script that each of its steps runs again
_AGAIN = re.compile(r"\$\{?0\b|BASH_SOURCE")


def _is_trapped(lines: list[str], name: str) -> bool:
    number = next((number for number, known in _NAMES.items() if known == name), name)
    words = re.compile(rf"\b(?:SIG)?{name}\b|\s{number}\b", re.IGNORECASE)
    traps = (_TRAP.match(line) for line in lines)
    return any(trap is not None and words.search(trap[1]) is not None for trap in traps)


@file_rule(
    "PS537",
    Severity.WARNING,
    ConfigFormat.SCRIPT,
    source="https://slurm.schedmd.com/sbatch.html#OPT_signal",
    covers=("PIT525",),
)
def signals_reach_who_answers(file: ConfigFile) -> Iterator[Hit]:
    """The signal that announces the end of a job's time goes to somebody who answers it.

    --signal=USR1@120 goes to what srun starts, not to the batch shell, its traps and what it starts itself.
    --signal=B:USR1@120 goes to the batch shell alone: without a trap it ends there, and the job with it.
    With one it answers as soon as the command that it waits for is over, unless that runs in the
    background and the shell is in wait. Otherwise the last checkpoint is lost that somebody planned for.
    """
    stated = str(file.get("sbatch.signal") or "")
    signal, lines = _SIGNAL.fullmatch(stated), list((file.get("text") or {}).values())
    if signal is None or not lines:
        return
    name = _NAMES.get(signal[2], signal[2].upper())
    to_shell = "B" in (signal[1] or "").upper()
    said = _of_the_shell(file, lines, name) if to_shell else _of_the_steps(file, lines, name)
    if said is not None:
        yield Hit(message=f"--signal={stated}{said[0]}", fix=said[1], key="sbatch.signal")


def _of_the_shell(file: ConfigFile, lines: list[str], name: str) -> tuple[str, str] | None:
    """Return what is wrong with a signal to the batch shell, and what mends it."""
    if name in _NAMES.values() and not any(map(_ELSEWHERE.search, lines)):
        return f" ends the batch shell, which has no trap for {name}", (
            "remove B: where the training answers the signal itself, or add a trap"
        )
    is_held = file.get("started.by") in ("script", "srun")
    if is_held and _is_trapped(lines, name) and not any(map(_FREE.search, lines)):
        return f": the trap for {name} runs when the training is over, not before", (
            f"write {launcher_of(file).command} ... & and wait behind it, so that the shell is free"
        )
    return None


def _of_the_steps(file: ConfigFile, lines: list[str], name: str) -> tuple[str, str] | None:
    """Return what is wrong with a signal to the steps of a job, and what mends it."""
    steps = any(map(_STEPS.search, lines))
    if file.get("started.by") == "script" and reaches_others(file) is False and not steps:
        command = launcher_of(file).command
        return (
            f" goes to what srun starts, and {command} is started without it",
            f"write srun {command} ...",
        )
    again = any(map(_AGAIN.search, lines))
    if name in ("USR1", "USR2") and _is_trapped(lines, name) and not again:
        return (
            f" does not reach the batch shell, which has a trap for {name}",
            f"write --signal=B:{name}@120",
        )
    return None
