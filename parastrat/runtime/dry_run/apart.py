"""A dry run in a process of its own: groups leave traces in torch, and patches would reach others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from parastrat.errors import LaunchError, ParastratError, WrapError
from parastrat.runtime.building import described

Task = TypeVar("Task")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error on its way between processes, which errors with a hint do not survive."""

    kind: type[ParastratError]
    message: str
    hint: str


def preload(*modules: str) -> None:
    """Let the processes of dry runs be copies of one that imported torch and these modules: for several."""
    own = "parastrat.runtime.dry_run"
    multiprocessing.get_context("forkserver").set_forkserver_preload([own, *modules])


def apart(run: Callable[[Task], Answer], task: Task) -> Answer:
    """Return what ``run(task)`` gives in a process of its own.

    Raises:
        ParastratError: as ``run`` raised it.
        WrapError: quoting whatever else it raised.
        LaunchError: the process ended without an answer.
    """
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, run, task))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError as error:
        process.join()
        raise LaunchError(
            f"the dry run ended with exit code {process.exitcode}",
            hint="a negative code is a signal, -9 mostly for want of memory; else see above",
        ) from error
    process.join()
    if isinstance(answer, Refusal):
        raise answer.kind(answer.message, hint=answer.hint)
    found: Answer = answer
    return found


def _answer(pipe: Any, run: Callable[[Any], Any], task: Any) -> None:
    torch.set_num_threads(1)
    try:
        answer: Any = run(task)
    except ParastratError as error:
        answer = Refusal(kind=type(error), message=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001  (the model's code may raise anything; the message quotes it)
        answer = Refusal(
            kind=WrapError,
            message=f"the dry run raised {described(error)}",
            hint="see whether the model trains on one device",
        )
    pipe.send(answer)
    pipe.close()
