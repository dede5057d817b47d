"""What a shell or batch script says of a launch: directives, variables, and how torchrun is started.

A line-wise reading, not a shell: what a variable or a substitution stands for stays unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parastrat.parse.shell_lines import is_comment, logical_lines, words_of
from parastrat.parse.slurm_options import slurm_options

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTIVE = re.compile(r"^#SBATCH\s+(-.*)$")
_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
#: options of torchrun that take no value, and the one that torch.distributed.launch alone has
_SWITCHES = frozenset(
    {"standalone", "no-python", "run-path", "module", "m", "help", "virtual-local-rank", "use-env"}
)
_OF_LAUNCH = "use-env"
#: a letter with its value, as argparse takes it
_ATTACHED = re.compile(r"-[rt]\d.*")
#: an option that begins with what text processors make of hyphens; to torchrun it is the script's name
_DASHED = re.compile("-?([\u2010-\u2015\u2212])[-\u2010-\u2015\u2212]?(?=[A-Za-z])")
_ENDS = frozenset({"&&", "||", ";", "|", "&"})
#: what starts a command on other machines, whatever the job is
_REMOTE = frozenset({"ssh", "pdsh", "clush", "mpirun", "mpiexec", "parallel-ssh"})
_SHELLS = frozenset({"bash", "sh", "zsh"})
#: what only speaks of a command
_SPEAKING = frozenset({"echo", "printf", "which", "type", "command", "pip", "man"})
#: of srun: how many nodes and tasks it starts, and what chooses nodes
_SRUN_COUNTS = ("nodes", "ntasks", "ntasks-per-node")
_SRUN_CHOICES = ("nodelist", "relative")
#: text for another shell that this one leaves as it is; between other quotes it puts in what it knows
_IN_QUOTES = re.compile(r"\s-[a-z]*c\s+'|\\\$")
_FUNCTION = re.compile(r"\s*(?:function\s+\w+|\w+\s*\(\))\s*(?:\(\))?\s*\{?\s*$")
#: what may stand before a command that it runs
_RUNNING = frozenset(
    {"exec", "time", "nohup", "env", "then", "do", "else", "if", "!", "{", "(", "sudo", "timeout"}
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


@dataclass(slots=True)
class _Found:
    """What was read so far, and where."""

    table: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: each launch's own
    launches: list[_Found] = field(default_factory=list)
    #: whether lines are of a function, which runs where it is called
    in_function: bool = False
    #: whether words are of a text that another shell reads, which expands them where it runs
    in_shell: bool = False

    def note(self, section: str, name: str, value: str, line: int) -> None:
        self.table.setdefault(section, {})[name] = value
        self.positions.setdefault(section, (line, 1))
        self.positions[f"{section}.{name}"] = (line, 1)


def script_tables(text: str) -> tuple[tuple[dict[str, Any], dict[str, tuple[int, int]]], ...]:
    """Return what a script states of each of its launches, and where; of the job alone if it has none.

    The tables are ``sbatch`` (directives by their long names), ``env`` (exported variables), ``torchrun``
    (its options, with hyphens), ``started`` (``by``: ``srun``, ``other`` for what else reaches machines, or
    ``script``; ``nodes``, ``ntasks`` and ``ntasks-per-node`` that srun was told of, and of ``tasks``
    whether they are on chosen nodes, or unknown; ``shell``, where one of its own expands its words;
    ``module``: ``torch.distributed.launch``; ``options``, where some are unknown; ``only``: whether no
    other launch stands there), ``dashes`` (options that begin with another dash than a hyphen, and that
    dash; they are read as they were meant), ``late`` (directives behind the first command, by their lines),
    ``dos`` (lines that end as DOS ends them) and ``text``, the logical lines by their number. Values are
    text as written.
    """
    found = _Found()
    if "\r\n" in text:
        found.table["dos"] = "yes"
        found.positions["dos"] = (text.partition("\r\n")[0].count("\n") + 1, 1)
    for number, line in logical_lines(text):
        directive = _DIRECTIVE.match(line)
        if directive is not None and "text" in found.table:
            # Slurm reads none behind the first command
            found.note("late", str(number), line.strip(), number)
        elif directive is not None:
            for option, value in slurm_options(directive[1].partition(" #")[0].split()):
                found.note("sbatch", option, value, number)
        if not line.strip() or is_comment(line):
            continue
        found.table.setdefault("text", {})[str(number)] = line
        found.positions[f"text.{number}"] = (number, 1)
        found.in_function = (found.in_function or bool(_FUNCTION.match(line))) and line.strip() != "}"
        _read_line(line, number, found)
    only = "yes" if len(found.launches) == 1 else "no"
    return tuple(
        (
            found.table
            | launch.table
            | {
                "started": launch.table["started"] | {"only": only},
                # those of its own line as well
                "env": found.table.get("env", {}) | launch.table.get("env", {}),
            },
            found.positions | launch.positions,
        )
        for launch in found.launches
    ) or ((found.table, found.positions),)


def starts_torchrun(text: str) -> bool:
    """Return whether a script has a launch."""
    return "torchrun" in script_tables(text)[0][0]


def _variables(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what is assigned among some words."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            yield name, value


def _read_line(line: str, number: int, found: _Found) -> None:
    assigned, words = _ASSIGNMENT.match(line.strip()), words_of(line)
    if words is None:
        return
    if words and (words[0] == "export" or (assigned is not None and len(words) == 1)):
        for name, value in _variables(words):
            found.note("env", name, value, number)
    elif assigned is not None and assigned[2].startswith(("$(", "`")):
        # what a command prints, of several words
        found.note("env", assigned[1], assigned[2], number)
    else:
        _read_commands(words, number, found)


def _read_commands(words: list[str], number: int, found: _Found, before: tuple[str, ...] = ()) -> None:
    """Read the commands of a line, behind what runs them."""
    begin = 0
    for place, word in enumerate([*words, ";"]):
        # a semicolon stands at a word's end
        if word in _ENDS or word.endswith(";"):
            own = words[begin:place] + ([word[:-1]] if word not in _ENDS else [])
            _read_command([*before, *own], len(before), number, found)
            begin = place + 1


def _read_command(words: list[str], start: int, number: int, found: _Found) -> None:
    for place in range(start, len(words)):
        name = words[place].rpartition("/")[2]
        if name in _SHELLS and len(words) > place + 2 and re.fullmatch(r"-[a-z]*c", words[place + 1]):
            found.in_shell = bool(_IN_QUOTES.search(found.table["text"][str(number)]))
            for _, line in logical_lines(words[place + 2]):
                _read_commands(words_of(line) or [], number, found, tuple(words[:place]))
            found.in_shell = False
            return
        module = _module_of(words, place)
        options = words[place + (3 if module else 1) :]
        if (name == "torchrun" or module) and options and _is_run(words[start:place], words[:place]):
            _read_torchrun(words[:place], module, options, number, found)
            return


def _is_run(own: list[str], before: list[str]) -> bool:
    """Return whether a word behind others is a command that they run, not an argument of another."""
    if own and own[0] in _SPEAKING:
        return False
    if not _REMOTE.isdisjoint(before) or "srun" in own:
        # a container's runtime may stand between; other programs take a launcher's name for an option
        return not (own and "launcher" in own[-1])
    bare = [word for word in own if not _stands_before(word)]
    return not bare or (bare[0].rpartition("/")[2] in _WRAPPERS and "launcher" not in own[-1])


def _stands_before(word: str) -> bool:
    """Whether a word only leads to a command: a variable, an option, a time, or what opens a group."""
    is_open = word.endswith(("()", "{", "("))
    return (
        word in _RUNNING or word.startswith(("-", "$")) or "=" in word or is_open or bool(_TIME.match(word))
    )


def _module_of(words: list[str], place: int) -> str:
    """Return ``torch.distributed.run`` or ``launch`` where python runs it as a module; else nothing."""
    is_python = words[place].rpartition("/")[2].startswith("python")
    rest = [word for word in words[place + 1 : place + 4] if word != "-u"][:2]
    if is_python and len(rest) == 2 and rest[0] == "-m" and rest[1].startswith("torch.distributed."):
        return rest[1]
    return ""


def _read_torchrun(before: list[str], module: str, words: list[str], number: int, found: _Found) -> None:
    launch = _Found(table={"torchrun": {}}, positions={"torchrun": (number, 1)})
    found.launches.append(launch)
    # what a variable runs is unknown, as is where a function runs
    named = any(word.startswith("$") or "()" in word for word in before)
    unsure = found.in_function or named or not _REMOTE.isdisjoint(before)
    by = "srun" if "srun" in before else "other" if unsure else "script"
    launch.note("started", "by", by, number)
    for name, value in _variables(before):
        launch.note("env", name, value, number)
    for name, value in slurm_options(before[before.index("srun") + 1 :] if by == "srun" else ()):
        if name in _SRUN_COUNTS:
            launch.note("started", name, value, number)
        if name in _SRUN_CHOICES or not name:
            launch.note("started", "tasks", "chosen" if name else "unknown", number)
    if found.in_shell:
        launch.note("started", "shell", "own", number)
    if module:
        launch.note("started", "module", module, number)
    _read_options(words, module, number, launch)


def _read_options(words: list[str], module: str, number: int, launch: _Found) -> None:
    rest = iter(words)
    for word in rest:
        if word.startswith(("$", "`")):
            launch.note("started", "options", "unknown", number)
        dashed = _DASHED.match(word)
        if dashed is not None:
            launch.note("dashes", word, dashed[1], number)
            word = "--" + word[dashed.end() :]  # noqa: PLW2901 - as it was meant
        if not word.startswith("-") or word == "--":
            return  # the script, and what is its own
        whole = f"{word[:2]}={word[2:]}" if _ATTACHED.fullmatch(word) else word
        name, equals, value = whole.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals and name not in _SWITCHES:
            value = next(rest, "")
        if name == _OF_LAUNCH and module.endswith(".launch"):
            continue
        launch.note("torchrun", name, value if equals or value else "yes", number)
