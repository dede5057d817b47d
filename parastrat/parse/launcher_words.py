"""What stands behind a launcher's name: its options, what it runs, and the words of that."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from parastrat.parse.dashes import as_meant
from parastrat.parse.key_names import full_name

if TYPE_CHECKING:
    from parastrat.parse.found import Found
    from parastrat.parse.launchers import Start

#: an option that torch.distributed.launch alone has, and that takes no value
_OF_LAUNCH = "use-env"
#: a letter with its value, as argparse takes it
_ATTACHED = re.compile(r"-(?:[rt]\d|[Hie][\w./]).*")


def read_options(words: list[str], start: Start, number: int, launch: Found) -> None:
    """Read a launcher's options into the table of its launch, then what it runs."""
    entry = launch.known[start.launcher]
    separator = entry.get("separator", "")
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word.startswith(("$", "`")):
            launch.note("started", "options", "unknown", number)
        meant, dash = as_meant(word, entry)
        if dash is not None:
            launch.note("dashes", word, dash, number)
        word = meant
        if not word.startswith("-") or word == "--":
            program = word if word != "--" else _next(rest)
            _read_program(program, [*rest], number, launch)
            return
        whole = f"{word[:2]}={word[2:]}" if _ATTACHED.fullmatch(word) else word
        name, equals, value = whole.lstrip("-").partition("=")
        if separator:
            name = name.replace("_", separator).replace("-", separator)
        full = full_name(name, entry, {})
        is_switch = full in entry["switches"]
        of_launch = name == _OF_LAUNCH and start.module.endswith(".launch")
        # an option that nobody knows leaves the script to be run
        ends = full not in entry["keys"] and rest and rest[0].endswith(".py")
        if not equals and not is_switch and not of_launch and not ends:
            value = _next(rest)
        if not of_launch:
            launch.note(start.launcher, name, "yes" if is_switch and not equals else value, number)
    _read_program("", [], number, launch)


def _next(rest: deque[str]) -> str:
    return rest.popleft() if rest else ""


def _read_program(word: str, behind: list[str], number: int, launch: Found) -> None:
    """Read what is run, its options, and the file that DeepSpeed's arguments or HF's trainer name."""
    options: dict[str, str] = {}
    for place, option in enumerate(behind):
        if not option.startswith("--"):
            continue
        name, equals, value = option.partition("=")
        following = next(iter(behind[place + 1 :]), "-")
        options[name.removeprefix("--")] = value if equals or following.startswith("-") else following
    is_open = any(option.startswith(("$", "`")) for option in behind)
    launch.table["own"] = {"program": word, "options": options, "words": tuple(behind)}
    launch.table["own"] |= {"open": "yes"} if is_open else {}
    launch.positions["own"] = (number, 1)
    for name in ("deepspeed_config", "deepspeed"):
        if options.get(name, "").endswith(".json"):
            launch.note("started", "engine", options[name], number)
