"""Where srun or MPI's launcher starts ranks itself, with no launcher of torch's between, and what with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from parastrat.parse.launchers import stands_before
from parastrat.parse.slurm_options import slurm_entries, step_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: names of MPI's launcher; the last two are Open MPI's alone
_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_INTERPRETER = re.compile(r"(?:.*/)?python[\d.]*")
#: modules that do something else than to train
_TOOLS = frozenset({"compileall", "ensurepip", "pip", "pytest", "venv"})
#: options of MPI's launchers by what they say, without their hyphens
_MEANINGS = {
    **dict.fromkeys(("n", "np", "c"), "n"),
    **dict.fromkeys(("host", "H"), "host"),
    **dict.fromkeys(("hostfile", "machinefile", "f"), "hostfile"),
    "x": "handed",
}
#: options that Open MPI has alone
_OPEN_MPIS = frozenset(
    {"H", "allow-run-as-root", "mca", "npernode", "oversubscribe", "report-bindings", "tag-output", "x"}
)
#: in an option, a mapping or a parameter of Open MPI: as many ranks on a host as are asked for
_ANY_NUMBER = re.compile(r".*oversubscribe", re.IGNORECASE)


def rank_start(words: Sequence[str], srun: Mapping[str, Any]) -> dict[str, str] | None:
    """Return what is told of ranks that a command starts; None where it starts none.

    These are ``by`` (``srun`` or ``mpirun``), ``program`` (a script or a module; empty where a variable
    holds it), for srun what ``step_facts`` tells; for MPI's launcher ``n``, ``host``, ``hostfile``,
    ``handed`` (names of variables, with blanks between), ``is`` (``open-mpi`` where its options show it),
    ``slots`` (``any``, where ranks may be more than they) and ``open``, where the shell alone knows more.

    Args:
        words: those of the command, and of what runs the command's shell.
        srun: what is known of srun's options.
    """
    place = _first(words)
    name = words[place].rpartition("/")[2] if place < len(words) else ""
    if name != "srun" and name not in _MPI:
        return None
    end, program = _program(words, place + 1)
    if program is None and (name == "srun" or not words[-1].startswith("$")):
        return None
    own = words[place + 1 : end]
    if name == "srun":
        return {"by": name, "program": program or "", **dict(step_facts(slurm_entries(name, own, srun)))}
    return {"by": "mpirun", "program": program or "", **dict(_of_mpi(name, own))}


def python_program(words: Sequence[str]) -> str | None:
    """Return the script or module that a command runs by itself; None for any other command."""
    place = _first(words)
    end, program = _program(words, place)
    return program if end == place else None


def _first(words: Sequence[str]) -> int:
    """Return the place of the word that names a command; behind all where none does."""
    return next((place for place, word in enumerate(words) if not stands_before(word)), len(words))


def _program(words: Sequence[str], first: int) -> tuple[int, str | None]:
    """Return the place of the first interpreter or script among words, and what it runs, if anything."""
    for place in range(first, len(words)):
        if words[place].endswith(".py"):
            return place, words[place]
        if _INTERPRETER.fullmatch(words[place]):
            return place, _of_python(words[place + 1 :])
    return len(words), None


def _of_python(words: Sequence[str]) -> str | None:
    for place, word in enumerate(words):
        if word == "-m":
            module = next(iter(words[place + 1 :]), "")
            return None if module.partition(".")[0] in _TOOLS else module
        if word == "-c":
            return None
        if not word.startswith("-"):
            return word
    return None


def _of_mpi(name: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    handed: list[str] = []
    is_open_mpi = name in ("orterun", "prterun")
    for place, word in enumerate(words):
        option, equals, value = word.lstrip("-").partition("=")
        if word.startswith(("$", "`")) or word == ":":
            yield "open", "yes"
        if _ANY_NUMBER.match(word):
            yield "slots", "any"
        if not word.startswith("-"):
            continue
        value = value if equals else next(iter(words[place + 1 :]), "")
        is_open_mpi = is_open_mpi or option in _OPEN_MPIS
        if option == "x":
            handed.append(value.partition("=")[0])
        elif option in _MEANINGS:
            yield _MEANINGS[option], value
    yield "handed", " ".join(handed)
    if is_open_mpi:
        yield "is", "open-mpi"
