"""What ranks should hold, set and answer alike, compared now and then: where it differs they train apart.

Nothing sends the parameters of replicas again once training runs. Weights that one rank alone loads, a
gradient that nobody reduced, a step that one rank leaves out, a learning rate that follows its own samples:
each rank goes on with a model of its own, without a word.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.tensor import DTensor

from parastrat.errors import MismatchError
from parastrat.runtime.leaves import tensors_in
from parastrat.runtime.tensor_parallel.alike import Alike
from parastrat.runtime.training.compared import DRIFT, differing, is_compared, spread
from parastrat.runtime.training.settings import settings_of
from parastrat.runtime.wrapping import inner

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.training.compared import Named
    from parastrat.runtime.wrapping import Wrapping

_LOADED = (
    "load and write weights on all ranks alike; call what auto_parallelize returned, not model.module or a "
    "method of it, and loss.backward(), not torch.autograd.grad; step in no hook of a parameter"
)
_TARGETS = "give all ranks of a tp group the same samples and targets, and write weights alike on them"

#: of models that live
living: WeakSet[Replicas] = WeakSet()


class Replicas:
    """Compares a wrapped model's ranks behind its backwards 1, 2, 4, 8 and so on, which all ranks run.

    That takes a pass over the weights, one message of two numbers for each, and a wait for the device.

    Args:
        model: wrapped.
        wrapping: of it.
    """

    def __init__(self, model: nn.Module, wrapping: Wrapping) -> None:
        self._wrapping = wrapping
        self._places = [
            (f"{path}.{key}".lstrip("."), part, key)
            for path, part in inner(model).named_modules()
            for key, held in part._parameters.items()  # noqa: SLF001  (as elsewhere)
            if held is not None
        ]
        self.device = wrapping.device
        #: of the whole model, all that ended
        self.backwards = 0
        #: steps of an optimizer without one before
        self.steps_without = 0
        #: a backward is running, of which ``_ended`` will hear
        self._running = False
        # not compiled, as FSDP2's own
        after: Any = torch.compiler.disable(self._forwarded)  # type: ignore[no-untyped-call]
        if wrapping.pipeline is None:
            inner(model).register_forward_hook(after)
        living.add(self)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """All ranks that hold parts of the same parameters."""
        return self._wrapping.mesh.stage_group

    @property
    def holds_copies(self) -> bool:
        """Whether DDP holds them, which reduces what its own forward began."""
        plan = self._wrapping.plan
        return plan.mesh.dp > 1 and plan.mesh.tp == 1 and not plan.shards_parameters

    def held(self) -> dict[int, str]:
        """Return the names of the model's parameters, by their identity; while none is gathered."""
        return {id(part._parameters[key]): name for name, part, key in self._places}  # noqa: SLF001  (as above)

    def stepped(self, loss: torch.Tensor) -> None:
        """Count a step of ``forward_backward``, which returns this loss."""
        self.backwards += 1
        if is_compared(self.backwards):
            if self._wrapping.alike is not None:
                self._wrapping.alike.compare("the loss", [loss])
            self._compare()

    def compare_gradients(self) -> None:
        """Compare the gradients of copies, where no backward of the whole model came before a step."""
        held = [(name, part._parameters[key]) for name, part, key in self._places]  # noqa: SLF001  (as above)
        own: Named = [(name, None if each is None else each.grad) for name, each in held]
        if name := differing(own, self.device, self.group):
            raise MismatchError(
                f"{name} has another gradient on each rank: DDP reduces those of its own forward alone",
                hint="call the model that auto_parallelize returned, not model.module or a method of it",
            )

    def _forwarded(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self._wrapping.stepping:
            return
        if torch.is_grad_enabled():
            for leaf in tensors_in(output):
                if leaf.requires_grad:
                    leaf.register_hook(self._began)  # type: ignore[no-untyped-call]

    def _began(self, _gradient: torch.Tensor) -> None:
        if not self._running:
            self._running = True
            _behind(lambda: _behind(self._ended))  # FSDP2's own end, whichever was first

    def _ended(self) -> None:
        self._running = False
        self.backwards += 1
        if is_compared(self.backwards):
            self._compare()

    def _compare(self) -> None:
        groups: dict[dist.ProcessGroup, Named] = defaultdict(list)
        for name, part, key in self._places:
            held = part._parameters[key]  # noqa: SLF001  (as above)
            for group in self._groups(held):
                groups[group].append((name, held))
        names = {group: differing(held, self.device, group) for group, held in groups.items()}
        said = next((name for name in names.values() if name), "")
        settings = settings_of(self.held())
        (_, apart), *others = spread([float(bool(said)), *settings], self.device, self.group)
        if any(most - least > DRIFT * max(abs(most), abs(least)) for least, most in others):
            raise MismatchError(
                f"the ranks step otherwise: this one took {settings[0]:.0f} steps, the last with learning "
                f"rates of {settings[1]:g} together",
                hint="let schedules follow what is the same on all ranks, such as the mean of "
                "parastrat.evaluate, and leave out a step on all of them or on none",
            )
        if said or apart:
            raise MismatchError(
                f"the ranks have trained apart: {said or 'a weight of others'} should be the same on them, "
                "and is not",
                hint=_TARGETS if self._wrapping.plan.mesh.dp == 1 else _LOADED,
            )

    def _groups(self, parameter: Any) -> list[dist.ProcessGroup]:
        """Return the groups whose ranks hold the same of a parameter."""
        mesh = self._wrapping.mesh
        if parameter is None or parameter.is_meta:
            return []
        if not isinstance(parameter, DTensor):
            return [] if mesh.data_group is None else [mesh.data_group]
        own = parameter.device_mesh
        found = [
            own.get_group(dim) for dim, place in enumerate(parameter.placements) if place.is_replicate()
        ]
        # replicas of what tp alone divides are not among its own dimensions
        if own.ndim == 1 and own == mesh.tp and mesh.data_group is not None:
            found.append(mesh.data_group)
        return found


def compare_ranks(model: nn.Module, wrapping: Wrapping) -> None:
    """Compare a wrapped model's ranks from now on; those of dry runs are not there."""
    if wrapping.mesh.stage_group is not None and dist.get_backend() != "fake":
        wrapping.replicas = Replicas(model, wrapping)
        if wrapping.mesh.tp is not None:
            wrapping.alike = Alike(model, wrapping)


def _behind(action: Any) -> None:
    """Run an action when the backward that is running has ended."""
    Variable._execution_engine.queue_callback(action)  # noqa: SLF001  (as torch's own wrappers)
