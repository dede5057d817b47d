"""Functions run on several ranks at once, each in its own process.

The processes are forked from one that has imported torch and started no thread: an import takes seconds,
and every rank of every test would pay it.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing.forkserver
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from ports import free_port

from parastrat.errors import ParastratError

DEADLINE_S = 240
#: what most ranks import; what is not installed is left out
_IMPORTED = (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.export._trace",
    "parastrat.runtime.apply",
    "parastrat.runtime.dry_run",
    "parastrat.runtime.emission",
    "transformers.models.llama.modeling_llama",
)


def preload() -> None:
    """Let processes be copies of one that imported what most need."""
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload(list(_IMPORTED))


def start_server() -> None:
    """Start what processes are forked from, unless it is there; whoever starts it says what it imports."""
    preload()
    multiprocessing.forkserver.ensure_running()


def answers(asked: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return what each action comes to, or the message with which it is refused."""
    found: dict[str, Any] = {}
    for name, action in asked.items():
        try:
            found[name] = action()
        except ParastratError as error:
            found[name] = error.message
    return found


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` on every rank; return the results in the order of ranks.

    Fails with the first traceback if a rank raises, dies or does not end well.
    """
    start_server()
    context = torch.multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    port = free_port()
    processes = [
        context.Process(target=_rank, args=(rank, world_size, port, answers, function, arguments))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    results: dict[int, Any] = {}
    while len(results) < world_size and any(process.is_alive() for process in processes):
        if not answers.empty():
            rank, ok, value = answers.get()
            if not ok:
                for process in processes:
                    process.kill()
                raise AssertionError(f"rank {rank}:\n{value}")
            results[rank] = pickle.loads(value)  # noqa: S301  (our own process wrote it)
        else:
            next(process for process in processes).join(timeout=0.05)
    while not answers.empty():
        rank, ok, value = answers.get()
        assert ok, value
        results[rank] = pickle.loads(value)  # noqa: S301  (our own process wrote it)
    for process in processes:
        process.join(timeout=DEADLINE_S)
    assert [process.exitcode for process in processes] == [0] * world_size
    return [results[rank] for rank in range(world_size)]


def script_on_ranks(world_size: int, script: Path, *arguments: str, **environment: str) -> str:
    """Run a script on every rank, as torchrun does; return what rank 0 printed."""
    printed: list[str] = on_ranks(world_size, _printed, str(script), arguments, environment)
    return printed[0]


def _printed(script: str, arguments: tuple[str, ...], environment: dict[str, str]) -> str:
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


def _rank(
    rank: int, world_size: int, port: int, answers: Any, function: Callable[..., Any], arguments: Any
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    try:
        # pickled here: torch's own way shares memory that ends with this process
        answers.put((rank, True, pickle.dumps(function(*arguments))))
    except BaseException:  # the parent re-raises it
        answers.put((rank, False, traceback.format_exc()))
        raise
