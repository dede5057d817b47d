"""The small copy of a model that its layout is proven on."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.errors import ParastratError, WrapError
from parastrat.runtime.building import described
from parastrat.runtime.tensor_parallel.computed import Results, Task, results, task_of
from parastrat.runtime.tensor_parallel.copies import Source, small_copies
from parastrat.runtime.tensor_parallel.layout import Group, Layout, Step
from parastrat.runtime.tensor_parallel.proof import Verdict, proven
from parastrat.runtime.tensor_parallel.samples import batch_for, whole_batch_for
from parastrat.runtime.tensor_parallel.settle import settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.extent import Extent

Groups = tuple[Group, ...]

_GIVE = "pass sample_inputs= to auto_parallelize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The small copy, its batch, and what it computes alone."""

    copy: nn.Module
    task: Task
    expected: Results
    #: of the ranks that prove how it is divided
    mesh: DeviceMesh
    #: number of ranks that divide its layers
    degree: int
    #: by where something is divided, the steps of the forward on it that were proven
    steps: dict[str, set[Step]] = field(default_factory=dict)

    def judged(self, groups: Groups) -> Verdict:
        return self.holds(Layout(groups=groups))

    def holds(self, layout: Layout, extent: Extent | None = None) -> Verdict:
        verdict = proven(self.copy, self.expected, self.task, layout, self.mesh, extent)
        if verdict:
            for where, steps in verdict.steps.items():
                self.steps.setdefault(where, set()).update(steps)
        return verdict

    def settled(self, groups: Groups) -> Groups:
        return settled(Layout(groups=groups), self.copy, self.degree).groups


class _CopyError(WrapError):
    """A small copy cannot be made, or not called."""


def bench_of(
    source: Source, mesh: DeviceMesh, *, degree: int | None = None, positions: int | None = None
) -> Bench:
    """Return a small copy of the model, and what it computes alone.

    Args:
        source: the model.
        mesh: the ranks that prove how it is divided.
        degree: what sizes of the copy divide by; None: the number of ranks.
        positions: what its positions divide by; None: as the sizes.

    Raises:
        WrapError: if none can be made, or its forward raises.
    """
    failures: list[_CopyError] = []
    degree = degree or mesh.size()
    with _failing(source):
        for few in small_copies(source, degree):
            for batch in (batch_for, whole_batch_for)[: 1 if source.sample_inputs is None else 2]:
                try:
                    with _failing(source):
                        return _bench(few, batch(source, few, positions or degree), mesh, degree)
                except _CopyError as failure:  # other inputs, or the model's own sizes, may do
                    failures.append(failure)
    last = failures[-1]
    raise WrapError(last.message, hint=last.hint) from last.__cause__


def _bench(few: nn.Module, inputs: Any, mesh: DeviceMesh, degree: int) -> Bench:
    if not any(parameter.requires_grad for parameter in few.parameters()):
        # a teacher, say: gradients would tell no other way of dividing it, and tell more than outputs alone
        for parameter in few.parameters():
            parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
    task = task_of(few, inputs)
    # a forward may leave tensors in the module that cannot be copied
    expected = results(copy.deepcopy(few), task)
    if not expected.is_finite:
        raise ValueError("outputs or gradients are not finite")
    return Bench(copy=few, task=task, expected=expected, mesh=mesh, degree=degree)


@contextmanager
def _failing(source: Source) -> Iterator[None]:
    """Turn what a small copy raises into one message."""
    try:
        yield
    except ParastratError:
        raise
    except Exception as error:  # the user's code may raise anything; the message quotes it
        raise _CopyError(
            f"a small copy of this {type(source.module).__name__}, which its division by {source.axis} is "
            f"proven on, raised {described(error)}",
            hint=f"{_GIVE}: one micro-batch as the forward takes it"
            if source.sample_inputs is None
            else f"{_GIVE} that the forward takes on one device, or plan without {source.axis}",
        ) from error
