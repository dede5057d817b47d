"""Starts one rank: ties its life to the agent's, sends its output where it belongs, becomes the script.

The agent runs this file by its path, so it imports nothing but the standard library, and little of that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

#: of prctl(2): the signal that a process gets when the thread that started it ends
_PR_SET_PDEATHSIG = 1

STDOUT, STDERR, PROCESS = "stdout.log", "stderr.log", "pid"


def log_folder(root: Path, rank: str, restart: str) -> Path:
    """Return where a rank's output is kept; every restart has its own."""
    return root / f"attempt{restart}" / f"rank{rank}"


def main(arguments: list[str]) -> None:
    """Prepare this process, then replace it by the script's.

    Args:
        arguments: folder for logs, process id of the agent, script, the script's own arguments.
    """
    root, agent, *command = arguments
    _die_with(int(agent))
    rank = os.environ["RANK"]
    folder = log_folder(Path(root), rank, os.environ["TORCHELASTIC_RESTART_COUNT"])
    folder.mkdir(parents=True, exist_ok=True)
    _note_process(folder / PROCESS)
    _redirect(2, folder / STDERR)
    if rank != "0":
        _redirect(1, folder / STDOUT)
    os.execv(sys.executable, [sys.executable, "-u", *command])  # noqa: S606  (the user's own script)


def _die_with(agent: int) -> None:
    """Ask the kernel to kill this process when its agent is gone, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent:  # it went before the kernel was asked
            sys.exit(f"the agent (process {agent}) is gone")


def _note_process(path: Path) -> None:
    """Write this process's id, which stays the script's, whole or not at all."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(path)


def _redirect(descriptor: int, path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, descriptor)
    os.close(log)


if __name__ == "__main__":
    main(sys.argv[1:])
