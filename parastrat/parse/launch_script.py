"""What a shell or batch script says of a launch: directives, variables, and how launchers are started.

A line-wise reading, not a shell: what a substitution stands for stays unknown, as does a variable, but for
those that hold constants of the script for certain.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from parastrat.parse.exports import kept_within
from parastrat.parse.found import Found
from parastrat.parse.launcher_words import read_options
from parastrat.parse.launchers import LAUNCHERS, REMOTE, Start, is_run, start_at
from parastrat.parse.rank_starts import python_program, rank_start
from parastrat.parse.shell_lines import is_comment, logical_lines, words_of
from parastrat.parse.shell_values import OPENING, ShellValues, shell_values
from parastrat.parse.slurm_options import (
    directive_entries,
    directive_words,
    is_unread,
    slurm_entries,
    step_facts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_ENDS = frozenset({"&&", "||", ";", "|", "&"})
#: what makes commands behind it run at times, and what waits for those in the background or ends them
_CONDITIONS = frozenset({"[", "[[", "test", "||"})
_STOPPING = frozenset({"wait", "kill", "pkill", "killall", "fg"})
_SHELLS = frozenset({"bash", "sh", "zsh"})
#: text for another shell that this one leaves as it is; between other quotes it puts in what it knows
_IN_QUOTES = re.compile(r"\s-[a-z]*c\s+'|\\\$")
_GPUS = "CUDA_VISIBLE_DEVICES"
#: what runs a command with an environment of its own
_CONTAINERS = frozenset({"docker", "podman"})
#: of a script in a language whose lines no shell reads; Slurm takes those as well
_NO_SHELL = re.compile(r"#!.*\b(?:python[\d.]*|perl|ruby|node|Rscript|julia)\b")
_FUNCTION = re.compile(r"\s*(?:function\s+\w+|\w+\s*\(\))\s*(?:\(\))?\s*\{?\s*$")


def script_tables(
    text: str, known: Mapping[str, Any]
) -> tuple[tuple[dict[str, Any], dict[str, tuple[int, int]]], ...]:
    """Return what a script states of each of its launches, and where; of the job alone if it has none.

    The tables are ``sbatch`` (directives by their long names), ``srun`` (options of the one that starts the
    launch), ``equal`` and ``stray`` (``slurm_entries``), ``unread`` (remarks that were meant to be
    directives, by their lines), ``env`` (exported variables), ``kept`` (variables that are set and neither
    exported nor read), ``private`` (names of those that are read alone), one of ``torchrun``,
    ``accelerate`` and ``deepspeed`` (its options; torchrun's with hyphens), ``started``
    (``by``: ``srun``, ``other`` for what else reaches machines, or ``script``; ``nodes``, ``ntasks``
    and ``ntasks-per-node`` that srun was told of, and of ``tasks`` whether they are on chosen nodes, or
    unknown; ``shell``, where one of its own expands its words; ``module``:
    ``torch.distributed.launch``; ``engine``: DeepSpeed's file among the script's own words;
    ``options``, where some are unknown; ``gpus``, those that CUDA_VISIBLE_DEVICES names; ``only``:
    whether no other launch stands there), ``beside`` (tables of launches above it that still run, in the
    background of its shell), ``dashes`` (options that begin with another dash than a
    hyphen, or with one hyphen, and that dash; they are read as they were meant), ``late`` (directives
    behind the first command, by their lines), ``dos`` (lines that end as DOS ends them), ``text``, the
    logical lines by their number, and ``own``: ``program``, the word behind the launcher's options, the
    ``words`` behind that, and what of them are ``options``. Of a script without a launcher they are as well
    ``ranks``, of each command that starts some (``rank_start``; ``shell`` and ``only`` as of ``started``;
    ``exported``, names with blanks between), and ``alone``: the ``program`` that Python runs once. Values
    are text as written. ``known`` is the profile of scripts.
    """
    found = Found(known={entry["name"]: entry for entry in known["tables"]})
    if "\r\n" in text:
        found.table["dos"] = "yes"
        found.positions["dos"] = (text.partition("\r\n")[0].count("\n") + 1, 1)
    lines, first = tuple(logical_lines(text)), text.partition("\n")[0]
    found.values = shell_values([line for _, line in lines], first)
    for number, line in lines:
        directive = directive_words(line)
        if directive and "text" in found.table:
            # Slurm reads none behind the first command
            found.note("late", str(number), line.strip(), number)
        elif directive:
            for section, name, value in directive_entries(directive, found.known["sbatch"]):
                found.note(section, name, value, number)
        elif is_unread(line):
            found.note("unread", str(number), line.strip(), number)
        if not line.strip() or is_comment(line):
            continue
        if _NO_SHELL.match(first):
            break
        found.table.setdefault("text", {})[str(number)] = line
        found.positions[f"text.{number}"] = (number, 1)
        found.in_function = (found.in_function or bool(_FUNCTION.match(line))) and line.strip() != "}"
        values = found.values.in_function() if found.in_function else found.values
        found.line = values.expanded(line)
        _read_line(found.line, number, found)
        found.values.follow(line)
    _keep_within(found, [line for _, line in lines])
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
    ) or _started(found)


def _keep_within(found: Found, lines: list[str]) -> None:
    """Take what a script sets for itself alone out of what it exports."""
    exported = found.table.get("env", {})
    kept = kept_within(lines, exported)
    for name in kept.unread:
        line, _ = found.positions.pop(f"env.{name}")
        found.note("kept", name, exported.pop(name), line)
    if kept.read:
        found.table["private"] = tuple(sorted(kept.read))


def _started(found: Found) -> tuple[tuple[dict[str, Any], dict[str, tuple[int, int]]], ...]:
    """Return what a script without a launcher states of each command that starts ranks; else of the job."""
    only = "yes" if len(found.starts) == 1 else "no"
    return tuple(
        (found.table | {"ranks": start.table["ranks"] | {"only": only}}, found.positions | start.positions)
        for start in found.starts
    ) or ((found.table, found.positions),)


def starts_training(text: str, known: Mapping[str, Any]) -> bool:
    """Return whether a script has a launch, or starts ranks."""
    return not script_tables(text, known)[0][0].keys().isdisjoint((*LAUNCHERS, "ranks"))


def _variables(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what is assigned among some words."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            yield name, value


def _read_line(line: str, number: int, found: Found) -> None:
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


def _read_commands(words: list[str], number: int, found: Found, before: tuple[str, ...] = ()) -> None:
    """Read the commands of a line, behind what runs them."""
    begin = 0
    for place, word in enumerate([*words, ";"]):
        # a semicolon stands at a word's end
        if word in _ENDS or word.endswith(";"):
            own = words[begin:place] + ([word[:-1]] if word not in _ENDS else [])
            launches = len(found.launches)
            _read_command([*before, *own], len(before), number, found)
            if word == "&" and _is_certain(words, found):
                found.running += [launch.table for launch in found.launches[launches:]]
            if own and own[0] in _STOPPING:
                found.running.clear()
            begin = place + 1


def _is_certain(words: list[str], found: Found) -> bool:
    """Return whether commands are of a line, not of a shell within it, that runs when the script does."""
    is_plain = words[0] not in OPENING and _CONDITIONS.isdisjoint(words)
    is_of_line = words == words_of(found.line)
    return is_plain and is_of_line and not found.in_function and found.values.depth == 0


def _read_command(words: list[str], start: int, number: int, found: Found) -> None:
    for place in range(start, len(words)):
        name = words[place].rpartition("/")[2]
        if name in _SHELLS and len(words) > place + 2 and re.fullmatch(r"-[a-z]*c", words[place + 1]):
            found.in_shell = bool(_IN_QUOTES.search(found.line))
            for _, line in logical_lines(words[place + 2]):
                own = found.values.in_step().expanded(line)
                _read_commands(words_of(own) or [], number, found, tuple(words[:place]))
            found.in_shell = False
            return
        begun = start_at(words, place)
        if begun is not None and words[begun.end :] and is_run(words[start:place], words[:place]):
            _read_launch(words[:place], begun, words[begun.end :], number, found)
            return
    _read_start(words, number, found)


def _read_start(words: list[str], number: int, found: Found) -> None:
    """Read a command that is no launch: it may start ranks, or run a program once."""
    ranks, program = rank_start(words, found.known["srun"]), python_program(words)
    if ranks is not None:
        ranks["exported"] = " ".join(sorted(found.values.exported))
        start = Found(table={"ranks": ranks}, positions={"ranks": (number, 1)})
        if found.in_shell:
            start.note("ranks", "shell", "own", number)
        found.starts.append(start)
    elif program is not None and "alone" not in found.table:
        found.note("alone", "program", program, number)


def _read_launch(before: list[str], start: Start, words: list[str], number: int, found: Found) -> None:
    launch = Found(table={start.launcher: {}}, positions={start.launcher: (number, 1)}, known=found.known)
    found.launches.append(launch)
    if found.running:
        launch.table["beside"] = tuple(found.running)
    # what a variable runs is unknown, as is where a function runs
    named = any(word.startswith("$") or "()" in word for word in before)
    unsure = found.in_function or named or not REMOTE.isdisjoint(before)
    by = "srun" if "srun" in before else "other" if unsure else "script"
    launch.note("started", "by", by, number)
    gpus = _gpus_shown(before, found.values)
    if gpus is not None:
        launch.note("started", "gpus", gpus, number)
    for name, value in _variables(before):
        launch.note("env", name, value, number)
    of_srun = before[before.index("srun") + 1 :] if by == "srun" else ()
    entries = list(slurm_entries("srun", of_srun, found.known["srun"]))
    for section, name, value in entries:
        # a word that is no option is what srun runs
        if section != "stray":
            launch.note(section, name, value, number)
    for name, value in step_facts(entries):
        launch.note("started", name, value, number)
    if found.in_shell:
        launch.note("started", "shell", "own", number)
    if start.module:
        launch.note("started", "module", start.module, number)
    read_options(words, start, number, launch)


def _gpus_shown(before: list[str], values: ShellValues) -> str | None:
    """Return the GPUs that a launch is shown, as far as what stands before it leaves them as they are."""
    # Slurm shows those of a step, whatever the script was shown
    own = dict(_variables(before[before.index("srun") :] if "srun" in before else before))
    is_apart = "srun" in before or not (REMOTE | _CONTAINERS).isdisjoint(before)
    exported = None if is_apart else values.in_step().known.get(_GPUS)
    return own.get(_GPUS, exported if isinstance(exported, str) else None)
