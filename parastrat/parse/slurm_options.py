"""Options of sbatch and srun among words, by their long names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: a letter with its value, or without
_LETTER = re.compile(r"(-[A-Za-z])(.*)")
#: letters and other names, by the long names
_LONG = {
    "-N": "nodes",
    "-n": "ntasks",
    "-c": "cpus-per-task",
    "-G": "gpus",
    "-w": "nodelist",
    "-r": "relative",
    "--tasks-per-node": "ntasks-per-node",
}
#: options that take no value, or take one with an equals sign alone
_SWITCHES = frozenset(
    {"-H", "-K", "-O", "-Q", "-k", "-l", "-s", "-u", "-v"}
    | {"--contiguous", "--exact", "--exclusive", "--hold", "--kill-on-bad-exit", "--label", "--no-kill"}
    | {
        "--no-container-entrypoint",
        "--no-container-mount-home",
        "--no-requeue",
        "--overcommit",
        "--overlap",
    }
    | {"--oversubscribe", "--pty", "--quiet", "--requeue", "--spread-job", "--unbuffered", "--verbose"}
)


def slurm_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, up to a word that is neither; a variable there comes without a name.

    The word behind an option counts as its value, but for the usual ones that take none.
    """
    is_value = False
    for place, word in enumerate(words):
        if not word.startswith("-"):
            if not is_value:
                yield from [("", word)] if word.startswith("$") else ()
                return
            is_value = False
            continue
        letter = None if word.startswith("--") else _LETTER.fullmatch(word)
        name, _, value = (letter[1], "", letter[2].lstrip("=")) if letter else word.partition("=")
        is_value = not value and name not in _SWITCHES
        behind = words[place + 1] if is_value and place + 1 < len(words) else "-"
        yield _LONG.get(name, name.lstrip("-")), value or ("" if behind.startswith("-") else behind)
