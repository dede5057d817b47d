"""What ranks should hold, set and answer alike, compared now and then: where it differs they train apart.

Nothing sends the parameters of replicas again once training runs. Weights that one rank alone loads, a
gradient that nobody reduced, a step that one rank leaves out, a learning rate that follows its own samples:
each rank goes on with a model of its own, without a word.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import MismatchError
from parastrat.runtime.communication.compared import DRIFT, differing, is_compared, spread
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.training.alike import Alike
from parastrat.runtime.training.first_ranks_buffers import OwnBuffers
from parastrat.runtime.training.samples import Samples
from parastrat.runtime.training.settings import settings_of
from parastrat.runtime.wrapped import inner, is_wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from parastrat.runtime.communication.compared import Named
    from parastrat.runtime.wrapped import Wrapped

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
    Backwards that reduce nothing are not counted: ranks may run other numbers of them, under ``no_sync``,
    of ``model.module``, or of inputs alone.

    Args:
        model: wrapped.
        wrapping: of it.
    """

    def __init__(self, model: nn.Module, wrapping: Wrapped) -> None:
        self._wrapping = wrapping
        #: with tp or cp only: what the ranks of a sample take, draw and return
        self.alike: Alike | None = None
        #: the one that reduces, if that is DDP
        self._replicated = model if isinstance(model, DistributedDataParallel) else None
        self._module = inner(model)
        self._places = [
            (f"{path}.{key}".lstrip("."), part, key)
            for path, part in self._module.named_modules()
            for key, held in part._parameters.items()  # noqa: SLF001  (as elsewhere)
            if held is not None
        ]
        self.device = wrapping.device
        has_samples = wrapping.mesh.data_group is not None and wrapping.mesh.pp is None
        self._samples = Samples(model, wrapping) if has_samples else None
        self._buffers = OwnBuffers(model, wrapping) if has_samples else None
        #: of the whole model, all that ended and reduced
        self.backwards = 0
        #: forwards of it whose gradients are reduced, and those of which the script keeps them to each rank
        self.forwards = 0
        self.kept = 0
        #: what tells the shapes of other parameters that its optimizers step
        self.beside: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        #: all ranks have some of these, of the same shapes, as was last heard
        self.is_beside_others = False
        #: writes to a weight as the first of these began since the last backward that reduced
        self._written: int | None = None
        #: steps of an optimizer without one before
        self.steps_without = 0
        #: a backward is running, of which ``_ended`` will hear
        self._running = False
        # not compiled, as FSDP2's own
        after: Any = torch.compiler.disable(self._forwarded)  # type: ignore[no-untyped-call]
        if wrapping.mesh.pp is None:
            model.register_forward_hook(after)
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

    @property
    def is_gathered(self) -> bool:
        """Whether forwards compute with what FSDP2 gathers, and not with the parameters themselves."""
        return self._wrapping.plan.shards_parameters and self._wrapping.mesh.pp is None

    def held(self) -> dict[int, str]:
        """Return the names of the model's parameters, by their identity; while none is gathered."""
        return {id(held): name for name, held in self._held() if held is not None}

    def added(self, parameters: Iterable[torch.Tensor]) -> str:
        """Return the name of the first of these that the script put into the model later, or "".

        Under tensor parallelism alone what is beside the layers is whole on all ranks, and trained alike.
        """
        if self._wrapping.mesh.pp is not None:
            return ""
        asked = {id(each) for each in parameters}
        around: tuple[str, ...] = ("",)
        if self._wrapping.plan.mesh.dp == 1:
            around = tuple(f"{name}." for name in self._wrapping.blocks.names)
        named = self._module.named_parameters() if asked else ()
        return next((name for name, each in named if id(each) in asked and name.startswith(around)), "")

    def _held(self) -> Iterator[tuple[str, Any]]:
        """Yield the parameters by name; None where the script has taken one away."""
        for name, part, key in self._places:
            yield name, part._parameters.get(key)  # noqa: SLF001  (as above)

    def stepped(self, loss: torch.Tensor) -> None:
        """Count a step of ``forward_backward``, which returns this loss."""
        self.backwards += 1
        own = self._are_the_scripts()
        if is_compared(self.backwards):
            if self.alike is not None:
                self.alike.compare("the loss", [loss])
            self._compare(own, plain=False)
        self._ask()

    def compare_gradients(self) -> None:
        """Compare the gradients of copies, where no backward of the whole model came before a step."""
        own: Named = [(name, None if each is None else each.grad) for name, each in self._held()]
        if name := differing(own, self.device, self.group):
            raise MismatchError(
                f"{name} has another gradient on each rank: DDP reduces those of its own forward alone",
                hint="call the model that auto_parallelize returned, not model.module or a method of it",
            )

    def _forwarded(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        # copies of a replicated model have its hooks, and nobody's note
        if self._wrapping.stepping or not torch.is_grad_enabled() or not is_wrapped(module):
            return
        if not self._reduces():
            self.kept += 1
            self._written = self._writes() if self._written is None else self._written
            return
        self.forwards += 1
        for leaf in tensors_in(output):
            if leaf.requires_grad:
                leaf.register_hook(self._began)  # type: ignore[no-untyped-call]

    def _reduces(self) -> bool:
        """Whether a backward of what a forward returns now is one that all ranks run."""
        ddp = self._replicated
        if ddp is None:
            return True
        # ranks that are done answer for what DDP sends alone
        return ddp.require_backward_grad_sync and not ddp._join_config.enable  # noqa: SLF001  (no public accessor)

    def _writes(self) -> int:
        """Return how often one of the weights was written: schemes that write them write all."""
        first = next((held for _, held in self._held() if held is not None and held.requires_grad), None)
        return 0 if first is None else first._version  # noqa: SLF001  (no public accessor)

    def _are_the_scripts(self) -> bool:
        """Whether a script lets ranks hold weights of their own, behind a backward.

        It says how DDP reduces; or it wrote weights by gradients that it kept to each rank, as local steps
        and perturbations do, and is to bring them together itself.
        """
        written, self._written = self._written, None
        hooks = self._replicated is not None and bool(self._replicated._comm_hooks)  # noqa: SLF001  (as above)
        return hooks or (written is not None and written != self._writes())

    def _began(self, _gradient: torch.Tensor) -> None:
        if not self._running and (self._replicated is None or _accumulates(self._held())):
            self._running = True
            _behind(lambda: _behind(self._ended))  # FSDP2's own end, whichever was first

    def _ended(self) -> None:
        self._running = False
        self.backwards += 1
        own = self._are_the_scripts()
        if is_compared(self.backwards):
            self._compare(own, plain=True)
        self._ask()

    def _ask(self) -> None:
        if self._samples is not None:
            self._samples.is_asked = is_compared(self.backwards + 1)

    def _compare(self, own: bool, *, plain: bool) -> None:
        if self._samples is not None:
            self._samples.compare(plain=plain)
        if self._buffers is not None:
            self._buffers.compare()
        groups: dict[dist.ProcessGroup, Named] = defaultdict(list)
        for name, held in self._held():
            for group in self._groups(held):
                groups[group].append((name, held))
        names = {group: differing(held, self.device, group) for group, held in groups.items()}
        said = next((name for name in names.values() if name), "")
        settings = settings_of(self.held())
        flags = [float(bool(said)), float(own), float(settings.of), float(sum(self.beside.values()))]
        (_, apart), (_, meant), of, beside, *others = spread(
            [*flags, *settings.numbers], self.device, self.group
        )
        self.is_beside_others = beside[0] == beside[1] > 0
        # optimizers of other weights on each rank, as ZeRO's are, may be set otherwise
        is_same = of[0] == of[1]
        if is_same and any(most - least > DRIFT * max(abs(most), abs(least)) for least, most in others):
            raise MismatchError(
                f"the ranks step otherwise: this one took {settings.steps:.0f} steps, the last with "
                f"learning rates of {settings.rates:g} together",
                hint="let schedules follow what is the same on all ranks, such as the mean of "
                "parastrat.evaluate, and leave out a step on all of them or on none",
            )
        if (said or apart) and not meant:
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
            return [] if mesh.gradient_group is None else [mesh.gradient_group]
        own = parameter.device_mesh
        found = [
            own.get_group(dim) for dim, place in enumerate(parameter.placements) if place.is_replicate()
        ]
        # replicas of what tp alone divides are not among its own dimensions
        if own.ndim == 1 and own == mesh.tp and mesh.gradient_group is not None:
            found.append(mesh.gradient_group)
        return found


def _accumulates(held: Iterator[tuple[str, Any]]) -> bool:
    """Return whether the backward that is running gives some of these a gradient, which DDP reduces."""
    for _, parameter in held:
        if parameter is None or not parameter.requires_grad:
            continue
        try:
            if torch._C._will_engine_execute_node(get_gradient_edge(parameter).node):  # noqa: SLF001  (no public way)
                return True
        except RuntimeError:  # it is what torch.autograd.grad was asked for
            return True
    return False


def _behind(action: Any) -> None:
    """Run an action when the backward that is running has ended."""
    Variable._execution_engine.queue_callback(action)  # noqa: SLF001  (as torch's own wrappers)
