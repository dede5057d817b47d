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


def slurm_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, up to a word that is neither.

    Which options take none is not known here: the word behind one counts as its value.
    """
    is_value = False
    for place, word in enumerate(words):
        if not word.startswith("-"):
            if not is_value:
                return
            is_value = False
            continue
        letter = None if word.startswith("--") else _LETTER.fullmatch(word)
        name, _, value = (letter[1], "", letter[2].lstrip("=")) if letter else word.partition("=")
        is_value = not value
        behind = words[place + 1] if place + 1 < len(words) else "-"
        yield _LONG.get(name, name.lstrip("-")), value or ("" if behind.startswith("-") else behind)
