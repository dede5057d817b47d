"""A forward followed on fake tensors: which parts it calls, and what each reads and returns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from parastrat.runtime.pipeline.attributes import kept_of
from parastrat.runtime.pipeline.between import check_buffers
from parastrat.runtime.pipeline.checkpointed import not_reentrant
from parastrat.runtime.pipeline.flow import Flow, Kind, Source, Visit
from parastrat.runtime.pipeline.route import Event, Route, TensorShape, parts_of
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.tensors.batches import called
from parastrat.runtime.tensors.storages import storage_of
from parastrat.runtime.tracing.fake_mode import FakeMode
from parastrat.runtime.tracing.fakes import fake_input, fake_module, gpu_kernels
from parastrat.runtime.tracing.watched import explained
from parastrat.runtime.untouched import untouched


@dataclass(slots=True, kw_only=True, eq=False)
class Trace:
    """A module on fake tensors."""

    module: nn.Module
    parts: dict[str, nn.Module]
    flow: Flow
    setting: Setting
    #: the micro-batch
    batch: Any
    events: list[Event] = field(default_factory=list)
    calls: list[tuple[str, int | None]] = field(default_factory=list)

    def run(self) -> tuple[Route, Any]:
        """Run the forward once; return its way and its output."""
        # autocast anew for every run: it remembers the weights that it has cast
        with (
            _watching(self.parts, self._enter, self._leave),
            self.setting.active(),
            not_reentrant(),
            untouched(self.module),  # a stage keeps no table that another has made
            self.flow,
        ):
            output = called(self.module, self.batch)
            kept = tuple(kept_of(self.module, self.flow))
        events = tuple(_with_changes(index, event, self.flow) for index, event in enumerate(self.events))
        end = self.flow.sources_of(output)
        return Route(calls=tuple(self.calls), events=events, end=end, kept=kept), output

    def _enter(self, _name: str) -> None:
        self.flow.begin_visit()

    def _leave(self, name: str, output: Any) -> None:
        visit = self.flow.end_visit()
        index = len(self.events)
        leaves, spec = tree_flatten(output)
        needs = frozenset(visit.read) | _handed_on(self.flow, output, visit)
        if not needs:
            self.calls.append((name, None))
            return
        self.calls.append((name, index))
        for held in visit.touched.values():
            held.sources = frozenset({Source(Kind.INSIDE, index)})
        place = 0
        known: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                held, source = self.flow.held(leaf), Source.output(index, place)
                held.sources = frozenset({source})
                held.returned.add(source)
                known.append(
                    TensorShape(shape=leaf.shape, dtype=leaf.dtype, requires_grad=leaf.requires_grad)
                )
                place += 1
            else:
                known.append(leaf)
        self.events.append(Event(part=name, spec=spec, leaves=tuple(known), needs=needs, flops=visit.flops))


def _handed_on(flow: Flow, output: Any, visit: Visit) -> frozenset[Source]:
    """Return the sources of outputs that the part returned as it was given them."""
    given = [
        flow.held(leaf)
        for leaf in tree_flatten(output)[0]
        if isinstance(leaf, torch.Tensor) and id(flow.held(leaf)) not in visit.touched
    ]
    return frozenset[Source]().union(*(held.sources for held in given))


def _with_changes(index: int, event: Event, flow: Flow) -> Event:
    changed = {source.index for source in flow.changed if source.event == index}
    if not changed:
        return event
    place = -1
    leaves = []
    for leaf in event.leaves:
        if isinstance(leaf, TensorShape):
            place += 1
            leaf = TensorShape(  # noqa: PLW2901  (the same tensor, known better)
                shape=leaf.shape,
                dtype=leaf.dtype,
                requires_grad=leaf.requires_grad,
                changed=place in changed,
            )
        leaves.append(leaf)
    return Event(
        part=event.part, spec=event.spec, leaves=tuple(leaves), needs=event.needs, flops=event.flops
    )


@contextmanager
def _watching(
    parts: dict[str, nn.Module], enter: Callable[[str], None], leave: Callable[[str, Any], None]
) -> Iterator[None]:
    """Tell when a part begins and ends; parts that others call count as those."""
    depth = 0

    def before(name: str) -> Callable[..., None]:
        def hook(_part: nn.Module, _args: Any) -> None:
            nonlocal depth
            depth += 1
            if depth == 1:
                enter(name)

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(_part: nn.Module, _args: Any, output: Any) -> None:
            nonlocal depth
            depth -= 1
            if depth == 0:
                leave(name, output)

        return hook

    with ExitStack() as stack:
        for name, part in parts.items():
            stack.callback(part.register_forward_pre_hook(before(name)).remove)
            stack.callback(part.register_forward_hook(after(name)).remove)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A module's forward for one micro-batch, still on fake tensors."""

    module: nn.Module
    route: Route
    output: Any
    flow: Flow
    #: of all computations, as traces that are begun here number them
    numbers: dict[Hashable, int]
    #: begins another trace, with the named parameters known to it
    begin: Callable[[frozenset[str]], Trace]


@contextmanager
def followed(module: nn.Module, inputs: Any, setting: Setting) -> Iterator[Whole]:
    """Follow the module's forward for a micro-batch, in training or evaluation as ``module`` is.

    Raises:
        ModelError: if the forward raises, or needs values.
        WrapError: if it changes a buffer that no stage could keep.
    """
    numbers: dict[Hashable, int] = {}
    with _fakes_of(module, inputs, setting, numbers) as begin:
        trace = begin(None)
        with explained(module):
            route, output = trace.run()
        check_buffers(module, trace.flow)
        yield Whole(
            module=module, route=route, output=output, flow=trace.flow, numbers=numbers, begin=begin
        )


def route_of(module: nn.Module, inputs: Any, setting: Setting) -> Route:
    """Return the way of the module's forward for a micro-batch.

    Raises:
        ModelError: as ``followed`` does.
        WrapError: likewise.
    """
    with followed(module, inputs, setting) as whole:
        return whole.route


@contextmanager
def _fakes_of(
    module: nn.Module, inputs: Any, setting: Setting, numbers: dict[Hashable, int]
) -> Iterator[Callable[[frozenset[str] | None], Trace]]:
    """Put the module on fake tensors.

    Yields:
        A function that begins a trace, with the named parameters (None: all) known to it.
    """
    parts, training = parts_of(module), module.training
    mode = FakeMode()
    with fake_module(module, mode, setting.dtype) as (parameters, constants), gpu_kernels():
        addresses = set(map(storage_of, parameters.values()))

        def begin(present: frozenset[str] | None) -> Trace:
            flow = Flow(numbers, lambda tensor: storage_of(tensor) in addresses)
            for name, parameter in parameters.items():
                known = present is None or name in present
                key = ("parameter", name) if known else ("absent", name, id(flow))
                flow.name(parameter, key, [Source(Kind.PARAMETER, name=name)])
            for index, tensor in enumerate(constants):
                flow.name(tensor, ("constant", index))
            batch = tree_map(lambda leaf: fake_input(leaf, setting.dtype), inputs)
            for index, leaf in enumerate(tree_leaves(batch)):
                if isinstance(leaf, torch.Tensor):
                    flow.name(leaf, ("input", index))
            flow.known.tell(batch, inputs)
            return Trace(module=module, parts=parts, flow=flow, setting=setting, batch=batch)

        module.train(training)
        with mode:
            yield begin
