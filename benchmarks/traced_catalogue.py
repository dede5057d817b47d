"""A catalogue's models, each traced beside a step that runs: what catalogues share.

Storages are counted as operators make them. MemTracker's hooks would hold more: the gradients of a module's
inputs until the last of them has come, as in Pegasus-X, where that is the peak.

Where the loss is the one that the output suggests, what it does not reach of the parameters that the
forward reads counts as trained, as the estimate has it: it gets gradients of zero behind backward.

An error counts where it is over 2 % and over a floor: operators hold a few scalars and statistics in
passing that no estimate counts one by one.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import multiprocessing
import statistics
import time
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from parity_recipes import called
from parity_transformers import said
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from traced import GOAL, estimated
from traced_models import Subject

from parastrat.errors import ParastratError
from parastrat.runtime.building import Builder, build_module
from parastrat.runtime.precision import autocast_forward
from parastrat.runtime.tensors.leaves import tensors_in, tree_tensors
from parastrat.runtime.tensors.storages import storage_of
from parastrat.runtime.tracing import watched
from parastrat.runtime.tracing.example_loss import example_loss, loss_of, read_by_loss
from parastrat.runtime.tracing.fakes import as_with_values
from parastrat.units import MIB
from parastrat.workload import Precision

#: bytes of an error that is no finding
FLOOR = 16 * 1024
_LARGEST, _SLOWEST_S, _PATIENCE_S = 50_000_000, 2.0, 100.0
_KEPT, _FEWEST, _MOST = 8 * MIB, 4, 64
#: weights, their gradients and AdamW's states would hide an error of what is kept beside them
_OF_WEIGHTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A way to call a model."""

    #: (samples, length) -> a tensor, tuple or dict
    make: Callable[[int, int | None], Any]
    #: tokens of a sample; None: it takes no tokens
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A way to build a model, and the ways to call what that builds."""

    build: Callable[[], nn.Module]
    calls: Callable[[nn.Module], Iterable[Call]]


#: by a name, ways to build that model, what comes first before others
Catalogue = Callable[[str], Iterable[Try]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A class's peaks, or why there are none."""

    name: str
    mixed: bool
    #: bytes; 0 where there is none
    here: int = 0
    real: int = 0
    parameters: int = 0
    samples: int = 0
    #: of the gradients that a suggested loss does not make, which the estimate counts from where they might
    missed: int = 0
    #: what could not be built or called; what parastrat refused; what it raised else
    untried: str = ""
    refused: str = ""
    crashed: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> tuple[str, str]:
        """What came of it, and why it was not compared."""
        reasons = {"untried": self.untried, "refused": self.refused, "crashed": self.crashed}
        return next((each for each in reasons.items() if each[1]), ("compared", ""))

    @property
    def error(self) -> float:
        return self.here / self.real - 1

    @property
    def is_off(self) -> bool:
        apart = self.here - self.real
        return not -max(GOAL * self.real, FLOOR) <= apart <= max(GOAL * self.real, FLOOR) + self.missed


class Watched(TorchDispatchMode):
    """Counts the bytes of storages from the operator that makes them to their end."""

    def __init__(self, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.most = self._now = 0
        #: storages that operators were given
        self.read: set[int] = set()
        self._ends: dict[int, Any] = {}
        self._count(held)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.read |= {storage_of(tensor) for tensor in tree_tensors((args, kwargs))}
        self._count(tree_tensors(result))
        return result

    def _count(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            storage, key = tensor.untyped_storage(), storage_of(tensor)
            if key not in self._ends:
                self._now += storage.nbytes()
                self._ends[key] = weakref.ref(
                    storage, functools.partial(self._ended, key, storage.nbytes())
                )
        self.most = max(self.most, self._now)

    def _ended(self, key: int, size: int, _storage: Any) -> None:
        self._now -= size
        del self._ends[key]


def real(subject: Subject, precision: Precision) -> tuple[int, int]:
    """Return the most that a second step holds, and what gradients of no loss take.

    The first step makes the optimizer's states.
    """
    torch.manual_seed(0)
    module = subject.build().train()
    mixed = autocast_forward(module, torch.device("cpu"), precision)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
    inputs = subject.inputs(subject.samples, subject.length)

    def forward_and_backward() -> bool:
        output = called(module, inputs)
        read_by = read_by_loss(output)
        loss = loss_of(read_by, in_fp32=mixed)
        is_own = loss is read_by[0]
        del read_by
        loss.backward()
        return is_own

    with Watched([]) as first:
        is_own = forward_and_backward()
    missed = [
        weight
        for weight in module.parameters()
        if weight.requires_grad and weight.grad is None and storage_of(weight) in first.read and not is_own
    ]

    def optimize() -> None:
        for weight in missed:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        optimizer.zero_grad()

    optimize()
    gc.collect()
    states = tree_tensors(list(optimizer.state.values()))
    with Watched([*module.parameters(), *module.buffers(), *states, *tree_tensors(inputs)]) as second:
        forward_and_backward()
        optimize()
    return second.most, sum(weight.nbytes for weight in missed)


def outcome(name: str, catalogue: Catalogue, *, mixed: bool, divides: bool = True) -> Outcome:
    """Return what an estimate and a step of a model come to."""
    found = chosen(catalogue(name))
    if isinstance(found, str):
        return Outcome(name=name, mixed=mixed, untried=found)
    subject, size = found
    told = functools.partial(Outcome, name=name, mixed=mixed, parameters=size, samples=subject.samples)
    precision = Precision.BF16_MIXED if mixed else Precision.FP32
    try:
        held, missed = real(subject, precision)
    except Exception as error:  # noqa: BLE001 - models that nobody chose may raise anything
        return told(untried=said(error))
    try:
        with patch.object(watched, "gpu_kernels", as_with_values):
            return told(here=estimated(subject, precision, divides=divides), real=held, missed=missed)
    except ParastratError as error:
        return told(real=held, refused=str(error))
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        return told(real=held, crashed=traceback.format_exc())


def chosen(tries: Iterable[Try]) -> tuple[Subject, int] | str:
    """Return a model as a subject, with its parameters, or why nothing that is tried builds or calls it."""
    reasons: list[str] = []
    for each in tries:
        try:
            size = _size(each.build)
            if size > _LARGEST:
                reasons.append(f"has {size:,} parameters")
                continue
            module = each.build()
        except Exception as error:  # noqa: BLE001 - models that nobody chose may raise anything
            reasons.append(said(error))
            continue
        for call in each.calls(module):
            try:
                kept = _kept(module, call)
            except Exception as error:  # noqa: BLE001 - models that nobody chose may raise anything
                reasons.append(said(error))
                continue
            if kept:
                wanted = max(_KEPT, _OF_WEIGHTS * size)
                samples = min(max(math.ceil(wanted / kept), _FEWEST), _MOST)
                subject = Subject(build=each.build, samples=samples, length=call.length, inputs=call.make)
                return subject, size
            reasons.append(f"two samples take longer than {_SLOWEST_S} s")
    return "; ".join(dict.fromkeys(reasons)) or "no inputs known for its forward"


def _size(build: Callable[[], nn.Module]) -> int:
    """Return the parameters of a model, without memory where parastrat can build it so."""
    try:
        module = build_module(Builder(ref="it", build=build))
    except ParastratError:  # a finding, where the model runs
        module = build()
    return sum(parameter.numel() for parameter in module.parameters())


def _kept(module: nn.Module, call: Call) -> float:
    """Return the bytes that autograd keeps of a sample; 0 where it takes too long."""
    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    for weight in module.parameters():
        keep(weight)
    own, begun = sum(held.values()), time.process_time()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = called(module.train(), call.make(2, call.length))
        example_loss(output, in_fp32=False).backward()
    slow = time.process_time() - begun > _SLOWEST_S
    assert any(leaf.requires_grad for leaf in tensors_in(output))
    return 0.0 if slow else max(sum(held.values()) - own, 1) / 2


def _serve(name: str, catalogue: Catalogue, answers: Any, ways: dict[str, bool]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    answers.put(outcome(name, catalogue, **ways))


def asked(name: str, catalogue: Catalogue, *, mixed: bool, divides: bool = True) -> Outcome:
    """Return the outcome from a process of its own: what a model leaves behind goes with it."""
    begun = time.monotonic()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    ways = {"mixed": mixed, "divides": divides}
    process = context.Process(target=_serve, args=(name, catalogue, answers, ways))
    process.start()
    process.join(_PATIENCE_S)
    process.kill()
    process.join()
    ended = f"the process ended with {process.exitcode}"
    found = Outcome(name=name, mixed=mixed, untried=ended) if answers.empty() else answers.get()
    return Outcome(**(asdict(found) | {"seconds": time.monotonic() - begun}))


def _line(found: Outcome) -> str:
    kind, reason = found.verdict
    if reason:
        return f"{found.name:48} {kind}: {reason.splitlines()[-1] if kind == 'crashed' else reason}"
    return (
        f"{found.name:48} {found.here / MIB:9.2f} {found.real / MIB:9.2f} MiB, {found.samples:2} samples "
        f"{found.error:+7.1%}{' OFF' if found.is_off else ''}"
    )


def _known(state: Path) -> dict[tuple[str, bool], Outcome]:
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {(each.name, each.mixed): each for each in outcomes}


def flags(description: str, state: str) -> argparse.ArgumentParser:
    """Return the flags that every catalogue takes.

    Args:
        description: of the script.
        state: where results are kept.
    """
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.add_argument("--state", type=Path, default=Path(state))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--undivided", action="store_true", help="quicker: without what tp would divide")
    return parser


def run(names: Sequence[str], catalogue: Catalogue, given: argparse.Namespace) -> None:
    """Run what is not known yet of some names, and print what all of it comes to.

    Args:
        names: what may be run.
        catalogue: how to build each.
        given: what ``flags`` read.
    """
    known, end = _known(given.state), time.monotonic() + 60 * given.minutes
    wanted = [name for name in names if given.only in name]
    for name in wanted:
        if (name, given.mixed) in known:
            continue
        if time.monotonic() > end:
            print("out of time; run again to go on")
            break
        found = known[name, given.mixed] = asked(
            name, catalogue, mixed=given.mixed, divides=not given.undivided
        )
        with given.state.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        print(_line(found), flush=True)
    _sum_up([known[name, given.mixed] for name in wanted if (name, given.mixed) in known])


def _sum_up(outcomes: list[Outcome]) -> None:
    kinds = Counter(each.verdict[0] for each in outcomes)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    compared = [each for each in outcomes if each.here]
    if compared:
        errors = [abs(each.error) for each in compared]
        off = sum(each.is_off for each in compared)
        print(
            f"median {statistics.median(errors):.1%}, {off} of {len(compared)} off, worst {max(errors):.1%}"
        )
