"""One stage: the module's own forward, from the tensors that come in to those that go out.

All stages get the whole micro-batch. Events of earlier stages return what came in, or zeros of the right
shape that nobody reads; behind its last event a stage leaves the forward. What lies between, such as masks
and positions, is computed on every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from parastrat.errors import WrapError
from parastrat.runtime.pipeline.border import Border
from parastrat.runtime.pipeline.checkpointed import not_reentrant
from parastrat.runtime.pipeline.cut import Span
from parastrat.runtime.pipeline.flow import Source
from parastrat.runtime.pipeline.route import Route, TensorShape
from parastrat.runtime.pipeline.stand_ins import StandIns
from parastrat.runtime.tensors.batches import called

_OTHER_PATH = (
    "the forward must call the same blocks in the same order for every batch; plan --pp 1 if it cannot"
)


class _Leave(BaseException):
    """A stage is done; no ``except Exception`` of the user's forward may stop it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Passage:
    """One micro-batch on its way through one stage."""

    route: Route
    span: Span
    received: dict[Source, torch.Tensor]
    sent: dict[Source, torch.Tensor] = field(default_factory=dict)
    #: calls of parts so far
    place: int = 0
    #: calls that have begun and not ended
    depth: int = 0
    border: Border
    #: follows what is not of this stage; None: a proof does
    stand_ins: StandIns | None = None
    #: a part runs that is given nothing of it
    resting: bool = False

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what is not of this stage."""
        if self.stand_ins is None:
            yield
            return
        self.stand_ins.begin()
        try:
            yield
        finally:
            if not self.resting:
                self.stand_ins.end()

    def begin(self, name: str, given: Any) -> None:
        """A part is called."""
        self.depth += 1
        if self.depth > 1:
            return
        expected = self.route.calls[self.place][0] if self.place < len(self.route.calls) else "its end"
        if expected != name:
            raise WrapError(
                f"the forward called {name} where {expected} was expected: it takes another path for this "
                "batch than the one that was cut into stages",
                hint=_OTHER_PATH,
            )
        if self.stand_ins is not None and self.skipping is None and not self.stand_ins.is_in(given):
            self.resting = self.stand_ins.rest()

    @property
    def skipping(self) -> int | None:
        """The event that is called, if it belongs to an earlier stage."""
        event = self.route.calls[self.place][1] if self.depth == 1 else None
        return event if event is not None and event < self.span.begin else None

    def skipped(self, index: int) -> Any:
        """Return what a skipped event returns."""
        event = self.route.events[index]
        leaves, place = [], 0
        for leaf in event.leaves:
            if isinstance(leaf, TensorShape):
                leaves.append(self._arrived(Source.output(index, place), leaf))
                place += 1
            else:
                leaves.append(leaf)
        return tree_unflatten(leaves, event.spec)

    def done(self, output: Any) -> None:
        """A part has returned.

        Raises:
            _Leave: behind the last event of this stage.
        """
        self.depth -= 1
        if self.depth:
            return
        if self.resting and self.stand_ins is not None:
            self.stand_ins.go_on()
            self.resting = False
        index = self.route.calls[self.place][1]
        self.place += 1
        if self.span.is_last or index is None or index not in self.span:
            return
        tensors = [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor)]
        crossing = self.route.crossing(self.span.end)
        for source in crossing:
            if source.event == index:
                shape, tensor = self.route.shape_of(source), tensors[source.index]
                _check(tensor, shape, self.route.events[index].part)
                if self.stand_ins is not None:
                    self.stand_ins.check(tensor, f"what {self.route.events[index].part} returns")
                self.sent[source] = self.border.leaving(tensor, shape)
        if index == self.span.end - 1:
            raise _Leave

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Return what goes to the next stage, in order; some of it may only pass through."""
        crossing = self.route.crossing(self.span.end)
        return tuple(
            self.sent[source] if source in self.sent else self.border.passing(self.received[source])
            for source in crossing
        )

    def _arrived(self, source: Source, shape: TensorShape) -> torch.Tensor:
        if source not in self.received:
            stub = self.border.stub(shape)
            if self.stand_ins is not None:
                self.stand_ins.add(stub)
            return stub
        return self.border.entering(self.received[source], shape)


def _check(tensor: torch.Tensor, shape: TensorShape, part: str) -> None:
    if isinstance(tensor, DTensor):
        raise WrapError(
            f"{part} returned a tensor that is divided over {tensor.device_mesh.mesh_dim_names}, which no "
            "stage can send",
            hint="plan pp without tp, or tp without pp",
        )
    if without_values(tensor):  # its sends would send nothing
        raise WrapError(
            f"{part} returned a tensor without values: its code keeps a table, outside of its file, that "
            "was made when the forward was followed",
            hint="keep tables in buffers or attributes of the module, or plan --pp 1",
        )
    if tensor.shape != shape.shape or tensor.dtype is not shape.dtype:
        raise WrapError(
            f"{part} returned {tuple(tensor.shape)} of {tensor.dtype} where "
            f"{tuple(shape.shape)} of {shape.dtype} was expected",
            hint=_OTHER_PATH,
        )


def without_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is fake where others are not."""
    return isinstance(tensor, FakeTensor) and detect_fake_mode() is None


class Stage:
    """Runs a module as one stage; while no passage is under way, the module is as it was.

    Args:
        module: with all parts of ``parts`` in it.
        forward: the module's own.
        parts: names of the parts.
    """

    def __init__(self, module: nn.Module, forward: Callable[..., Any], parts: tuple[str, ...]) -> None:
        self._forward = forward
        self._passage: Passage | None = None
        self._undo: list[Callable[[], None]] = []
        self._hooks: list[tuple[nn.Module, int, int]] = []
        for name in parts:
            self._watch(name, module.get_submodule(name))

    def run(self, inputs: Any, passage: Passage) -> Any:
        """Return the whole output on the last stage, else the tuple for the next.

        Raises:
            WrapError: if the forward takes another path than the passage's route.
        """
        self._passage = passage
        try:
            with not_reentrant(), passage.following():
                output = called(self._forward, inputs)
                if passage.stand_ins is not None and passage.span.is_last:
                    passage.stand_ins.check(output, "the output")
        except _Leave:
            return passage.outputs()
        finally:
            self._passage = None
        if not passage.span.is_last:
            raise WrapError(
                f"the forward ended before stage {passage.span.stage} had run its blocks", hint=_OTHER_PATH
            )
        return output

    def come_first_and_last(self) -> None:
        """Run before and after all hooks, also those that were added since."""
        for part, first, last in self._hooks:
            before: Any = part._forward_pre_hooks  # noqa: SLF001  (no public way)
            after: Any = part._forward_hooks  # noqa: SLF001  (as above)
            before.move_to_end(first, last=False)
            after.move_to_end(last)

    def close(self) -> None:
        """Take all hooks off."""
        for undo in reversed(self._undo):
            undo()

    def _watch(self, name: str, part: nn.Module) -> None:
        forward = part.forward

        def before(_part: nn.Module, *given: Any) -> None:
            if self._passage is not None:
                self._passage.begin(name, given)

        def instead(*args: Any, **kwargs: Any) -> Any:
            skipping = None if self._passage is None else self._passage.skipping
            if self._passage is None or skipping is None:
                return forward(*args, **kwargs)
            return self._passage.skipped(skipping)

        def after(_part: nn.Module, _args: Any, output: Any) -> None:
            if self._passage is not None:
                self._passage.done(output)

        # first and last of all hooks: those of FSDP2 must not be left in the middle
        first = part.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        hooks = first, part.register_forward_hook(after)
        self._hooks.append((part, hooks[0].id, hooks[1].id))
        own = vars(part).get("forward")
        part.forward = instead

        def undo() -> None:
            for hook in hooks:
                hook.remove()
            if own is None:
                del part.forward
            else:
                part.forward = own

        self._undo.append(undo)
