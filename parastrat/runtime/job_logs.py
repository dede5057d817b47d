"""What the ranks of a job write: shown once, and searched for what went wrong first."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from parastrat.runtime.worker import STDERR, log_folder

#: torch puts the rank before each line of a traceback
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_TRACEBACK = re.compile(r"^(\[rank\d+\]: )?Traceback \(most recent call last\):", re.MULTILINE)
#: the line that ends a traceback: an exception's name, perhaps dotted, and its message
_NAMED = re.compile(r"[A-Za-z_][\w.]*(: |$)")
#: seconds between two looks at a log
_INTERVAL_S = 0.1
#: lines of a traceback, or of a log without one, that are shown
_LINES = 60
_LAST_LINES = 15


def stderr_log(root: Path, rank: int, restart: int) -> Path:
    """Return the file that holds what a rank wrote to stderr."""
    return log_folder(root, str(rank), str(restart)) / STDERR


@contextmanager
def rank_zero_shown(root: Path, restarts: int) -> Iterator[None]:
    """Show rank 0's stderr while the job runs.

    A traceback is held back: of several ranks that fail, only the first one's is worth reading.
    """
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(root, restarts, done), daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _follow(root: Path, restarts: int, done: threading.Event) -> None:
    read = dict.fromkeys(range(restarts + 1), 0)
    silent: set[int] = set()
    ended = False
    while not ended:
        ended = done.wait(_INTERVAL_S)
        for restart, start in read.items():
            log = stderr_log(root, 0, restart)
            if restart in silent or not log.exists():
                continue
            with log.open("rb") as file:
                file.seek(start)
                new = file.read()
            # whole lines only, so that a traceback is seen before it is shown
            whole = new if ended else new[: new.rfind(b"\n") + 1]
            text = whole.decode(errors="replace")
            found = _TRACEBACK.search(text)
            sys.stderr.write(text[: found.start()] if found else text)
            sys.stderr.flush()
            read[restart] += len(whole)
            if found:
                silent.add(restart)


def first_to_fail(failed: Mapping[int, int], root: Path, restart: int) -> int:
    """Return the rank that began it.

    Ranks that the agent stopped (SIGTERM) come last. Of the others the first has gone silent first: when a
    rank dies, its peers still write that their connection closed.

    Args:
        failed: ranks and their exit codes; negative: killed by that signal.
        root: folder of the logs.
        restart: number of the attempt.
    """

    def order(rank: int) -> tuple[bool, int, int]:
        log = stderr_log(root, rank, restart)
        silent_since = log.stat().st_mtime_ns if log.exists() else 0
        return failed[rank] == -15, silent_since, rank

    return min(failed, key=order)


def last_words(log: Path) -> str:
    """Return the traceback at the end of a log, or its last lines without one."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found = _TRACEBACK.search(text)
    lines = text[found.start() :].splitlines()[-_LINES:] if found else text.splitlines()[-_LAST_LINES:]
    return _PREFIX.sub("", "\n".join(lines))


def last_error(words: str) -> str:
    """Return the line that names the exception in a traceback; empty without one."""
    if not _TRACEBACK.match(words):
        return ""
    own = [line for line in words.splitlines()[1:] if line and not line[0].isspace()]
    return next((line for line in reversed(own) if _NAMED.match(line)), "")
