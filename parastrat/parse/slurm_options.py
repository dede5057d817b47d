"""Options of sbatch and srun among words, by their long names."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from parastrat.parse.dashes import as_meant
from parastrat.parse.form import did_you_mean
from parastrat.parse.key_names import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: a letter with its value, or without
_LETTER = re.compile(r"-([A-Za-z])(.*)")
#: what sbatch takes for a directive, whatever stands behind it
_DIRECTIVE = re.compile(r"#SBATCH(?=[\s-])(.*)")
#: a line that looks like one, to those who read it
_ALIKE = re.compile(r"\s*#([A-Za-z]{5,7})\s+-")
_WORD = "SBATCH"
#: words of a directive behind which those of another part of a heterogeneous job stand
_PARTS = frozenset({"hetjob", "packjob"})
#: of srun: how many nodes and tasks it starts, and what chooses nodes
_COUNTS = ("nodes", "ntasks", "ntasks-per-node")
_CHOICES = ("nodelist", "relative")
#: what is filled in before Slurm sees it, which may have blanks
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}")


def directive_words(line: str) -> list[str] | None:
    """Return the words of a directive, None of another line; Slurm reads quotes and remarks as a shell."""
    found = _DIRECTIVE.match(line)
    if found is None:
        return None
    words = shlex.shlex(_TEMPLATE.sub("{{}}", found[1]), posix=True, punctuation_chars=False)
    words.whitespace_split = True
    try:
        return list(words)
    except ValueError:
        # a quote is open
        return found[1].split()


def is_unread(line: str) -> bool:
    """Return whether a line was meant to be a directive that Slurm does not read: misspelt, or indented."""
    found = _ALIKE.match(line)
    if found is None or _DIRECTIVE.match(line):
        return False
    return did_you_mean(found[1], [_WORD], fold=str.upper, alike=0.8) is not None


def directive_entries(words: Sequence[str], entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what a directive says, as ``slurm_entries``; nothing of what begins another part of a job."""
    if words and words[0].lower() not in _PARTS:
        yield from slurm_entries("sbatch", words, entry)


def step_facts(entries: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Yield what srun's ``slurm_entries`` say of how much it starts, and where.

    ``nodes``, ``ntasks`` and ``ntasks-per-node`` as far as it is told of them, and ``tasks``: whether they
    are on chosen nodes, or unknown.
    """
    for section, name, value in entries:
        if name in _COUNTS:
            yield name, value
        if name in _CHOICES or (section == "stray" and name.startswith("$")):
            yield "tasks", "unknown" if section == "stray" else "chosen"


def slurm_entries(
    command: str, words: Sequence[str], entry: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield what words say to Slurm: a table, a name in it, and its value.

    The tables are ``command`` (options by their long names), ``dashes`` (options that begin with something
    else than two hyphens, and with what), ``equal`` (letters with an equals sign before their value, which
    to Slurm is a part of it) and ``stray``, the first word that is neither an option nor a value.

    Args:
        command: sbatch or srun.
        words: the options, and what stands behind them.
        entry: what is known of the command's options. The word behind one counts as its value, but for
            those that take none, or one with an equals sign alone.
    """
    is_value = False
    for place, word in enumerate(words):
        meant, dash = as_meant(word, entry)
        if dash is not None:
            yield "dashes", word, dash
        elif not word.startswith("-"):
            if not is_value:
                yield "stray", word, ""
                return
            is_value = False
            continue
        letter = None if meant.startswith("--") else _LETTER.fullmatch(meant)
        name, _, value = (letter[1], "", letter[2].lstrip("=")) if letter else meant.partition("=")
        if letter and letter[2].startswith("="):
            yield "equal", word, ""
        name = full_name(name.lstrip("-"), entry, {})
        is_value = not value and name not in entry["switches"]
        behind = words[place + 1] if is_value and place + 1 < len(words) else "-"
        yield command, name, value or ("" if behind.startswith("-") else behind)
