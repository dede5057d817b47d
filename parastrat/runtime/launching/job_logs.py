"""What the ranks of a job write: shown once, and searched for what went wrong first."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from parastrat.failures import Blames, known_failure
from parastrat.runtime.launching.worker import PROCESS, STDERR, log_folder

#: torch puts the rank before each line of a traceback
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_HEADER = "Traceback (most recent call last):"
_TRACEBACK = re.compile(rf"^(\[rank\d+\]: )?{re.escape(_HEADER)}", re.MULTILINE)
#: the start of a line that may yet become a traceback's first
_UNDECIDED = re.compile(r"^[T\[][^\r\n]*\Z", re.MULTILINE)
#: stands two lines above a traceback that another one led to
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: stands above the traceback of an exception that ended nothing
_IGNORED = "Exception ignored in"
#: seconds between two looks at a job
_INTERVAL_S = 0.1
#: a rank that lives so long after a traceback has caught it, and shows it on purpose
_HELD_S = 3.0
#: lines of a traceback, or of a log without one, that are shown
_LINES = 60
_LAST_LINES = 15
#: exit codes of a rank that the agent stopped: asked to end (SIGTERM), or killed as it did not
_STOPPED = (-15, -9)


@dataclass(slots=True)
class Watch:
    """What was seen of a running job."""

    root: Path
    #: a rank's log folder -> number of the look that found its process gone
    gone: dict[Path, int] = field(default_factory=dict)
    #: rank 0's log -> bytes of it that were shown
    shown: dict[Path, int] = field(default_factory=dict)
    #: rank 0's log -> when a traceback was first found in what is not shown yet
    held_since: dict[Path, float] = field(default_factory=dict)
    looks: int = 0


def stderr_log(root: Path, rank: int, restart: int) -> Path:
    """Return the file that holds what a rank wrote to stderr."""
    return log_folder(root, str(rank), str(restart)) / STDERR


@contextmanager
def watched(root: Path, restarts: int) -> Iterator[Watch]:
    """Show rank 0's stderr while the job runs, and note which ranks end first.

    A traceback is held back until it is plain that rank 0 survived it: of several ranks that fail, only the
    first one's is worth reading.
    """
    watch, done = Watch(root), threading.Event()
    logs = [stderr_log(root, 0, restart) for restart in range(restarts + 1)]
    follower = threading.Thread(target=_follow, args=(watch, logs, done), daemon=True)
    follower.start()
    ended_well = False
    try:
        yield watch
        ended_well = True
    finally:
        done.set()
        follower.join()
        for log in logs if ended_well else ():
            _show(watch, log, log.stat().st_size if log.exists() else 0)


def _follow(watch: Watch, logs: list[Path], done: threading.Event) -> None:
    ended = False
    while not ended:
        ended = done.wait(_INTERVAL_S)
        _note_the_gone(watch)
        for log in logs:
            if log.exists():
                _show(watch, log, _presentable(watch, log, time.monotonic()))


def _note_the_gone(watch: Watch) -> None:
    watch.looks += 1
    for path in watch.root.glob(f"attempt*/rank*/{PROCESS}"):
        if path.parent not in watch.gone and not _is_alive(int(path.read_text())):
            watch.gone[path.parent] = watch.looks


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _presentable(watch: Watch, log: Path, now: float) -> int:
    """Return up to where a log may be shown: to its end, or to a traceback that may be the last."""
    start = watch.shown.get(log, 0)
    with log.open("rb") as file:
        file.seek(start)
        new = file.read()
    # one byte is one character, so that positions in the text are those in the file
    text = new.decode("latin-1")
    found = _TRACEBACK.search(text)
    if found is None:
        watch.held_since.pop(log, None)
        undecided = _UNDECIDED.search(text)
        return start + (undecided.start() if undecided else len(text))
    if now - watch.held_since.setdefault(log, now) < _HELD_S:
        return start + found.start()
    del watch.held_since[log]
    return start + len(text)


def _show(watch: Watch, log: Path, end: int) -> None:
    start = watch.shown.get(log, 0)
    if end <= start:
        return
    with log.open("rb") as file:
        file.seek(start)
        sys.stderr.write(file.read(end - start).decode(errors="replace"))
    sys.stderr.flush()
    watch.shown[log] = end


def first_to_fail(failed: Mapping[int, int], watch: Watch, restart: int) -> int:
    """Return the rank that began it.

    Ranks that the agent stopped come last; it stops them once another has failed. Before them come those
    whose last error is that a peer is gone. Of the others the first has gone silent first.

    Args:
        failed: ranks and their exit codes; negative: killed by that signal.
        watch: what was seen of the job.
        restart: number of the attempt.
    """
    logs = {rank: stderr_log(watch.root, rank, restart) for rank in failed}
    gone = {rank: watch.gone.get(log.parent, watch.looks) for rank, log in logs.items()}
    first = min(gone.values())

    def order(rank: int) -> tuple[bool, bool, bool, int, int]:
        was_stopped = failed[rank] in _STOPPED and gone[rank] > first
        said = known_failure(last_error(last_words(logs[rank])))
        blames_a_peer = said is not None and said.blames is Blames.PEER
        silent_since = logs[rank].stat().st_mtime_ns if logs[rank].exists() else 0
        return was_stopped, failed[rank] == _STOPPED[0], blames_a_peer, silent_since, rank

    return min(failed, key=order)


def last_words(log: Path) -> str:
    """Return the traceback that ends a log, with those that led to it; without one the last lines."""
    lines = _PREFIX.sub("", log.read_text(errors="replace")).splitlines() if log.exists() else []
    starts = _tracebacks(lines)
    if not starts:
        return "\n".join(lines[-_LAST_LINES:])
    start = starts.pop()
    while starts and lines[max(0, start - 2)] in _CHAINED:
        start = starts.pop()
    words = lines[start:]
    if len(words) > _LINES:
        words = [_HEADER, f"  ... {len(words) - _LINES} lines", *words[-_LINES:]]
    return "\n".join(words)


def last_error(words: str) -> str:
    """Return the line that names the exception of the last traceback; empty without one."""
    lines = words.splitlines()
    starts = _tracebacks(lines)
    after = lines[starts[-1] + 1 :] if starts else []
    return next((line for line in after if line and not line[0].isspace()), "")


def _tracebacks(lines: list[str]) -> list[int]:
    """Return where tracebacks begin, but for those of exceptions that were ignored."""
    return [
        number
        for number, line in enumerate(lines)
        if line == _HEADER and not (number and lines[number - 1].startswith(_IGNORED))
    ]
