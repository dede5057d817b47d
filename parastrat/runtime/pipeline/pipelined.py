"""A wrapped model's pipeline: how it was cut, and the steps that it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from parastrat.errors import UsageError
from parastrat.runtime.communication.told import own_errors
from parastrat.runtime.pipeline.border import Border, Parcel
from parastrat.runtime.pipeline.copies import Copies, copies_of
from parastrat.runtime.pipeline.cut import Cut, Span, check_owners
from parastrat.runtime.pipeline.following import route_of
from parastrat.runtime.pipeline.job import Job, LossOf, index_of
from parastrat.runtime.pipeline.keeping import stand_in
from parastrat.runtime.pipeline.own_weights import OwnWeights
from parastrat.runtime.pipeline.pending import Unread
from parastrat.runtime.pipeline.prune import Absent
from parastrat.runtime.pipeline.route import Route
from parastrat.runtime.pipeline.same import check_same_batches, signature
from parastrat.runtime.pipeline.schedule import Received, Run
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.pipeline.staged import Passage, Stage
from parastrat.runtime.pipeline.stand_ins import StandIns
from parastrat.runtime.pipeline.ties import Tie, average_over_data, gradients_added
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.schedules import SPLIT, rank_of_stage, schedule_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.wrapped import Wrapped


@dataclass(slots=True, kw_only=True, eq=False)
class Pipeline:
    """The stages of this rank."""

    wrapping: Wrapped
    #: this rank's pipeline
    pp: DeviceMesh
    setting: Setting
    #: the whole module on the meta device: batches of other shapes are traced on it
    skeleton: nn.Module
    cut: Cut
    #: what the model of this rank lacks
    absent: Absent
    #: names of all parts of the module
    parts: tuple[str, ...]
    #: the model's blocks, and which of them follow each other on this rank
    extent: Extent
    #: this rank's, by stage
    modules: dict[int, nn.Module] = field(default_factory=dict)
    #: what the modules lack, where a rank has several stages
    others: dict[int, Absent] = field(default_factory=dict)
    ties: list[Tie] = field(default_factory=list)
    #: from the way of a forward to that of this rank's part of it
    as_divided: Callable[[Route], Route] = lambda route: route
    _model: nn.Module | None = None
    _stages: list[Stage] = field(default_factory=list)
    _copies: Copies = field(default_factory=Copies)
    _routes: dict[Any, Route] = field(default_factory=dict)
    _run: tuple[Any, Run] | None = None
    _job: Job | None = None

    def install(self, model: nn.Module) -> None:
        """Let the modules run as stages; they are wrapped already."""
        self._model = model
        for index, module in self.modules.items():
            absent = self.others.get(index, self.absent)
            stage = Stage(module, absent.answered(module.forward), self.parts)
            self._stages.append(stage)
            module.forward = self._forward(self.cut.spans[index], stage)
        for module in {model, *self.modules.values()}:
            # before FSDP2 gathers anything
            module.register_forward_pre_hook(lambda *_: (self.job, None)[1], prepend=True)

    def settle(self, model: nn.Module) -> None:
        """The script has the model from here on."""
        self._copies = copies_of(
            model, self.modules, (self.absent, *self.others.values()), self.parts, self.cut.ends
        )

    def step(self, batches: list[Any], loss_of: LossOf) -> Exception | None:
        """Run the schedule over one step's micro-batches; gradients are complete afterwards.

        Returns:
            What a stage of this rank failed with, where it kept step with the others.
        """
        routes = [self.route(batch) for batch in batches]
        failures: list[Exception] | None = [] if self._keeps_step else None
        job = Job(batches=batches, routes=routes, loss_of=loss_of, failures=failures)
        key = tuple(signature(batch) for batch in batches)
        if self._run is None or self._run[0] != key:
            check_same_batches(batches, self.group)
            ends = {stage: job.ends(self.cut.spans[stage]) for stage in self.modules}
            self._run = key, Run(self.wrapping.plan, self.modules, ends, self.group, self.wrapping.device)
        self._follow()
        with gradients_added(self.ties):
            with self._working(job), own_draws(self), own_errors():
                self._run[1].step()
            if not self.sharded:
                average_over_data(self.modules.values(), self.wrapping.mesh)
        return failures[0] if failures else None

    def receiving(self) -> list[Received]:
        """Return what the last schedule's stages receive one micro-batch into: activations, gradients."""
        return [] if self._run is None else self._run[1].receiving()

    def evaluate(self, batch: Any) -> Any:
        """Return the model's output on the rank of the last stage, None elsewhere; one batch at a time."""
        job = Job(batches=[batch], routes=[self.route(batch)], loss_of=lambda _index, output: output)
        index = torch.zeros(1, dtype=torch.int64)
        self._follow()
        result: Any = ()
        for stage, module in sorted(self.modules.items()):
            here = dist.get_rank(self.group)
            if stage and rank_of_stage(self.wrapping.plan, stage - 1) != here:
                result = self._received(job.parcel(self.cut.spans[stage].begin), stage)
            with self._working(job):
                result = module(*result, micro_batch=index)
            after = rank_of_stage(self.wrapping.plan, stage + 1)
            if not self.cut.spans[stage].is_last and after != here:
                for tensor in result:
                    dist.send(tensor, group_dst=after, group=self.group)
            if isinstance(module, FSDPModule):
                module.reshard()  # backward would have done it
        return result if self.holds_last else None

    def sum_over_stages(self, tensor: torch.Tensor) -> None:
        """All-reduce a tensor in place over the ranks of this pipeline."""
        dist.all_reduce(tensor, group=self.group)

    @property
    def group(self) -> dist.ProcessGroup:
        return self.pp.get_group()

    @property
    def sharded(self) -> bool:
        return not self.setting.autocast

    @property
    def _keeps_step(self) -> bool:
        """Whether a stage can stand in for what it fails to compute.

        Not where it owes collectives to other ranks, nor weights the second half of a backward.
        """
        split = schedule_of(self.wrapping.plan) in SPLIT
        return not (self.sharded or self.wrapping.plan.mesh.tp > 1 or split)

    @property
    def holds_last(self) -> bool:
        return len(self.cut.spans) - 1 in self.modules

    @property
    def counted_elsewhere(self) -> set[nn.Parameter]:
        """Parameters that another rank counts in norms over the whole model."""
        return {tie.parameter for tie in self.ties if not tie.counts}

    @property
    def job(self) -> Job:
        """What is being worked on.

        Raises:
            UsageError: if nothing is.
        """
        if self._job is None:
            raise UsageError(
                f"{type(self.skeleton).__name__} is cut into the stages of a pipeline: it cannot be called",
                hint="train with parastrat.forward_backward(model, inputs, targets, loss_fn=...), "
                "evaluate with parastrat.evaluate(model, loader, metric_fn)",
            )
        return self._job

    def _forward(self, span: Span, stage: Stage) -> Callable[..., Any]:
        split = schedule_of(self.wrapping.plan) in SPLIT
        border, own = Border(self.wrapping.device, split=split), OwnWeights(self.absent, split=split)
        stand_ins = StandIns(self.others.get(span.stage, self.absent).stand_ins)
        unread = Unread(self.modules[span.stage]) if len(self.modules) == 1 else None

        def computed(job: Job, index: int, received: tuple[torch.Tensor, ...]) -> Any:
            route = job.routes[index]
            came = (
                job.parcel(span.begin).unpacked(index, received, route.crossing(span.begin))
                if span.stage
                else {}
            )
            passage = Passage(route=route, span=span, received=came, border=border, stand_ins=stand_ins)
            with nullcontext() if unread is None else unread.forward():
                output = stage.run(self.setting.cast(job.batches[index]), passage)
            self._copies.publish(span.stage)
            if span.is_last:
                with own.alone(route.kept_before(span.begin), self.wrapping.device):
                    return job.loss_of(index, output)
            return job.parcel(span.end).packed(output)

        def forward(*received: torch.Tensor, micro_batch: torch.Tensor) -> Any:
            job, index = self.job, index_of(micro_batch)
            try:
                return computed(job, index, received)
            except Exception as error:
                if job.failures is None:
                    raise
                job.failures.append(error)
                outputs = stand_in(job.ends(span).leaving, received)
                return outputs[0] if span.is_last else outputs

        return forward

    def route(self, batch: Any) -> Route:
        """Return the way that the forward takes for a batch.

        Raises:
            WrapError: if the stages do not hold what they need for it.
        """
        training = self._model is None or self._model.training
        key = training, signature(batch)
        if key not in self._routes:
            self.skeleton.train(training)
            route = route_of(self.skeleton, batch, self.setting)
            check_owners(route, self.cut.spans, self.cut.owners)
            self._routes[key] = self.as_divided(route)
        return self._routes[key]

    def _received(self, parcel: Parcel, stage: int) -> tuple[torch.Tensor, ...]:
        source = rank_of_stage(self.wrapping.plan, stage - 1)
        tensors = tuple(
            torch.empty(shape.shape, dtype=shape.dtype, device=self.wrapping.device)
            for shape in parcel.shapes
        )
        for tensor in tensors:
            dist.recv(tensor, group_src=source, group=self.group)
        return tensors

    def _follow(self) -> None:
        """Do as the script's model does now: stages may have copies, and not run what hooks it."""
        self._copies.follow()
        if len(self._stages) > 1:
            for stage in self._stages:
                stage.come_first_and_last()

    @contextmanager
    def _working(self, job: Job) -> Iterator[None]:
        self._job = job
        try:
            yield
        finally:
            self._job = None


@contextmanager
def own_draws(pipeline: Pipeline) -> Iterator[None]:
    """Draw other random numbers than the other stages, without touching the caller's generator.

    Stages that began with one seed would all drop the same elements.
    """
    seed = int(torch.randint(2**62, (1,)).item())
    device = pipeline.wrapping.device
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type="cuda" if not devices else device.type):
        torch.manual_seed(seed + dist.get_rank(pipeline.group))
        yield
