"""One cell of the parity table: a small model trained under one strategy, on every rank of it."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parity_libraries import is_of_library
from parity_libraries import subject as subject_of_library
from parity_models import SUBJECTS, Subject, difference
from parity_recipes import Recipe, called
from parity_transformers import subject as subject_of_transformers
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

import parastrat
from parastrat.errors import ParastratError
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Shard
from parastrat.runtime.tensor_parallel.computed import move_the_last_bit
from parastrat.runtime.tensors.slots import clean_name
from parastrat.runtime.wrapped import inner
from parastrat.workload import Precision

MICRO_BATCH = 2
#: micro-batches of one optimizer step, over all data ranks and accumulation
MICRO_BATCHES = 4
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A plan but for the model."""

    mesh: Mesh
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan of one step of ``MICRO_BATCHES``."""
        return Plan(
            mesh=self.mesh,
            micro_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=MICRO_BATCHES // self.mesh.dp,
            precision=Precision.FP32,
            backend=Backend.GLOO,
            shard=Shard.PARAMETERS if self.mesh.dp_shard * self.mesh.cp > 1 else Shard.NONE,
            **self.options,
        )


def _pipelined(schedule: PipelineSchedule, *, chunks: int = 1, **axes: int) -> Strategy:
    options = {"pp_schedule": schedule, "virtual_stages": chunks, "reshard_after_forward": False}
    return Strategy(mesh=Mesh(pp=2, **axes), options=options)


_SP = {"sequence_parallel": True, "loss_parallel": True}
_1F1B, _LOOPED = PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED

STRATEGIES: dict[str, Strategy] = {
    "ddp": Strategy(mesh=Mesh(dp_replicate=2)),
    "fsdp2": Strategy(mesh=Mesh(dp_shard=2)),
    "hsdp": Strategy(mesh=Mesh(dp_replicate=2, dp_shard=2)),
    "cp": Strategy(mesh=Mesh(cp=2)),
    "fsdp2 x cp": Strategy(mesh=Mesh(dp_shard=2, cp=2)),
    "cp x tp": Strategy(mesh=Mesh(cp=2, tp=2)),
    "cp x tp+sp": Strategy(mesh=Mesh(cp=2, tp=2), options=_SP),
    "ep": Strategy(mesh=Mesh(dp_shard=2, ep=2)),
    "tp+sp x ep": Strategy(mesh=Mesh(dp_shard=2, tp=2, ep=2), options=_SP),
    "tp": Strategy(mesh=Mesh(tp=2)),
    "tp+sp": Strategy(mesh=Mesh(tp=2), options=_SP),
    "pp gpipe": _pipelined(PipelineSchedule.GPIPE),
    "pp 1f1b": _pipelined(_1F1B),
    "pp interleaved": _pipelined(_LOOPED, chunks=2),
    "pp looped-bfs": _pipelined(PipelineSchedule.LOOPED_BFS, chunks=2),
    "pp zero-bubble": _pipelined(PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, chunks=2),
    "pp zbv": _pipelined(PipelineSchedule.ZBV, chunks=2),
    "pp dual-pipe-v": _pipelined(PipelineSchedule.DUAL_PIPE_V, chunks=2),
    "ddp x tp": Strategy(mesh=Mesh(dp_replicate=2, tp=2)),
    "fsdp2 x tp": Strategy(mesh=Mesh(dp_shard=2, tp=2)),
    "pp x ddp": _pipelined(_1F1B, dp_replicate=2),
    "pp x ddp interleaved": _pipelined(_LOOPED, chunks=2, dp_replicate=2),
    "pp x fsdp2": _pipelined(_1F1B, dp_shard=2),
    "pp x cp": _pipelined(_1F1B, cp=2),
    "pp x ep": _pipelined(_1F1B, dp_shard=2, ep=2),
    "pp x tp": _pipelined(_1F1B, tp=2),
    "3d": _pipelined(_1F1B, dp_shard=2, tp=2),
}
#: those of classes of transformers with experts
OFTEN_OF_EXPERTS = ("ep", "tp+sp x ep", "pp x ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell to run."""

    model: str
    strategy: str
    #: the last rank gets wrong weights
    broken: bool = False
    #: optimizer steps; None takes the model's
    steps: int | None = None
    #: in fp64, where rounding moves nothing, from weights and inputs in fp32
    double: bool = False

    @property
    def known(self) -> str:
        """Name of the file that holds the run on one device."""
        plain = self.model.replace("/", " ")
        return f"{plain}{'-double' if self.double else ''}.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one rank saw. ``refused`` is empty where the model trained."""

    refused: str = ""
    #: empty but where something else than a refusal was raised
    crashed: str = ""
    losses: tuple[float, ...] = ()
    #: largest relative difference of a gradient of the first step, and whose it is
    apart: float = 0.0
    worst: str = ""
    #: parameters whose gradients this rank could compare
    compared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The same steps on one device in plain torch."""

    losses: tuple[float, ...]
    gradients: dict[str, torch.Tensor]
    #: wall time, without building the model
    seconds: float
    #: how a class of transformers, or a library's model, is built and called
    recipe: Recipe | None = None

    def save(self, path: Path) -> None:
        torch.save(asdict(self), path)

    @classmethod
    def load(cls, path: Path) -> Reference:
        held = torch.load(path)
        recipe = held.pop("recipe")
        return cls(**held, recipe=None if recipe is None else Recipe(**recipe))


def subject_of(name: str, recipe: Recipe | None) -> Subject:
    """Return a model by its name: one of the table's, or a class or a library's model with its recipe."""
    if recipe is None:
        return SUBJECTS[name]
    return (subject_of_library if is_of_library(name) else subject_of_transformers)(name, recipe)


def in_double(subject: Subject) -> Subject:
    """Return a model that begins with the same weights, and gets the same batches, in fp64."""

    def widened(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.double() if is_real else leaf

    def batch(step: int, samples: int) -> Any:
        return tree_map(widened, subject.batch(step, samples))

    return replace(subject, build=lambda: subject.build().double(), batch=batch)


def reference(subject: Subject, steps: int, *, beside: bool = False, noise: float = 0.0) -> Reference:
    """Train alone: every micro-batch by itself, weighted by its targets.

    Args:
        subject: the model and its batches.
        steps: of the optimizer.
        beside: begin with weights that differ in the last bit.
        noise: every gradient differs by up to this share of its largest element.
    """
    torch.manual_seed(0)
    model = subject.build()
    if beside:
        move_the_last_bit(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, gradients = [], {}
    begun = time.monotonic()
    for step in range(steps):
        inputs, targets = subject.batch(step, MICRO_BATCH * MICRO_BATCHES)
        total = _count(targets)
        loss = 0.0
        for start in range(0, MICRO_BATCH * MICRO_BATCHES, MICRO_BATCH):
            x, y = (_rows(side, start, start + MICRO_BATCH) for side in (inputs, targets))
            part = subject.loss_fn(called(model, x), y) * (_count(y) / total)
            part.backward()
            loss += part.item()
        losses.append(loss)
        if step == 0:
            # where there is no element there is nothing to compare, and under FSDP2 no gradient
            held = {name: p for name, p in model.named_parameters() if p.grad is not None and p.numel()}
            gradients = {name: p.grad.clone() for name, p in held.items()}
        _disturb(model, noise, step)
        optimizer.step()
        optimizer.zero_grad()
    return Reference(losses=tuple(losses), gradients=gradients, seconds=time.monotonic() - begun)


def _disturb(model: nn.Module, noise: float, step: int) -> None:
    if not noise:
        return
    draw = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.numel():
            signs = 2 * torch.rand(parameter.shape, generator=draw, dtype=torch.float32) - 1
            parameter.grad += noise * parameter.grad.abs().max() * signs


def serve(rank: int, job: Job, folder: Path, store: Path, answers: Any) -> None:
    """Run one cell; what fails by anything but a refusal is told too."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.filterwarnings("ignore")
    size = STRATEGIES[job.strategy].mesh.world_size
    dist.init_process_group("gloo", init_method=f"file://{store}/ranks", rank=rank, world_size=size)
    try:
        answer = _trained(job, folder)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the cell has crashed
        said = (str(error).splitlines() or [""])[0]
        answer = Answer(crashed=f"{type(error).__name__}: {said}")
    answers.put((rank, json.dumps(asdict(answer))))
    # what is put is written by a thread of its own; then nobody is left waiting for this rank
    answers.close()
    answers.join_thread()
    if not answer.refused and not answer.crashed:
        dist.barrier()


def _trained(job: Job, folder: Path) -> Answer:
    known = Reference.load(folder / job.known)
    subject = subject_of(job.model, known.recipe)
    sample, _ = subject.batch(0, MICRO_BATCH)
    plan = STRATEGIES[job.strategy].plan
    torch.manual_seed(0)
    try:
        module = parastrat.auto_parallelize(subject.build(), plan=plan, sample_inputs=sample)
        if job.double:
            subject = in_double(subject)
            module.double()
        if job.broken:
            _break(module)
        return _steps(module, subject, plan, known)
    except ParastratError as error:
        return Answer(refused=str(error))


def _break(model: nn.Module) -> None:
    """Let the last rank hold another weight than it should."""
    if dist.get_rank() == dist.get_world_size() - 1:
        with torch.no_grad():
            for parameter in model.parameters():
                held = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                held.mul_(1.5)


def _steps(model: nn.Module, subject: Subject, plan: Plan, known: Reference) -> Answer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    per_data_rank = dist.get_world_size() // plan.mesh.dp
    # axes from the outermost: pp, dp_replicate, dp_shard, cp, tp
    data_rank = dist.get_rank() // (plan.mesh.cp * plan.mesh.tp) % plan.mesh.dp
    assert per_data_rank == plan.mesh.pp * plan.mesh.cp * plan.mesh.tp
    share = MICRO_BATCH * MICRO_BATCHES // plan.mesh.dp
    losses: list[float] = []
    compared: dict[str, float] = {}
    for step in range(len(known.losses)):
        batch = subject.batch(step, MICRO_BATCH * MICRO_BATCHES)
        x, y = (_rows(side, data_rank * share, (data_rank + 1) * share) for side in batch)
        losses.append(parastrat.forward_backward(model, x, y, loss_fn=subject.loss_fn).item())
        if step == 0:
            compared = _differences(model, known.gradients)
        optimizer.step()
        optimizer.zero_grad()
    worst = max(compared, key=lambda name: not_less(compared[name]), default="")
    return Answer(
        losses=tuple(losses), apart=compared.get(worst, 0.0), worst=worst, compared=tuple(compared)
    )


def not_less(difference: float) -> float:
    """Return a difference to sort by: NaN, which ``max`` would pass over, is the largest."""
    return math.inf if math.isnan(difference) else difference


def _differences(model: nn.Module, expected: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the largest relative difference of each gradient that this rank has a part of."""
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    found = {}
    for name, parameter in inner(model).named_parameters(remove_duplicate=False):
        gradient, clean = parameter.grad, clean_name(name)
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        if gradient is None or clean not in expected:
            continue
        found[clean] = difference(gradient, expected[clean], largest)
    return found


def _count(targets: torch.Tensor) -> int:
    return targets.numel() if targets.is_floating_point() else int((targets != -100).sum())


def _rows(side: Any, start: int, end: int) -> Any:
    """Return samples of a batch; what is for all of them, such as places of patches, is whole."""

    def rows(leaf: Any) -> Any:
        of_samples = isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (MICRO_BATCH * MICRO_BATCHES,)
        return leaf[start:end] if of_samples else leaf

    return tree_map(rows, side)
