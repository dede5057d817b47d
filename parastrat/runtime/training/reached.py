"""Parameters that a loss does not reach: DDP waits for the gradients of all, unless it is told to look.

Unused heads, a last layer's residual branch, a norm that a parallel block leaves out: models have them, and
DDP then reduces nothing of their bucket. What the first loss reaches is looked up once, in its graph;
only where something is missing does DDP search every graph, which costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable

from parastrat.errors import WrapError
from parastrat.runtime.communication.messages import true_on_any
from parastrat.runtime.tensors.leaves import hides_tensors, tensors_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from parastrat.runtime.wrapped import Wrapped

#: backward runs another graph, which is not there yet
_HIDES_A_GRAPH = "CheckpointFunctionBackward"


def reached_from(outputs: Sequence[torch.Tensor]) -> set[torch.Tensor] | None:
    """Return the leaves that get a gradient from these tensors; None if their graph does not tell."""
    waiting = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen = set(waiting)
    found = {each for each in outputs if each.grad_fn is None and each.requires_grad}
    while waiting:
        node: Any = waiting.pop()
        if node.name() == _HIDES_A_GRAPH:
            return None
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(leaf)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


class Reached:
    """Sees once what a step of a replicated model reaches, and lets DDP search where that is not all."""

    def __init__(self, replicated: DistributedDataParallel, wrapping: Wrapped) -> None:
        self._replicated = replicated
        self._wrapping = wrapping
        self._known = replicated.find_unused_parameters
        self._checking = False
        #: all parameters by name, and which of them DDP's reducer waits for
        self._held = dict(replicated.module.named_parameters())
        self._reduced = set(self._trained())
        #: what each asked for when it was last looked at
        self._asked = [(each, each.requires_grad) for each in self._held.values()]
        self._is_first = True
        replicated.register_forward_pre_hook(self._follow_flags)
        replicated.module.register_forward_hook(self._forwarded)
        replicated.register_forward_hook(self._returned)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Reached:
        """Stay with the model: its copies, such as averages of its weights, are torch's own DDP."""
        return self

    def by_loss(self, loss: torch.Tensor) -> None:
        """See to a loss, of which the next backward is."""
        self._look([loss])
        if self._searches:
            # DDP took it that all the model returned would be read
            self._replicated.reducer.prepare_for_backward([loss])

    def _forwarded(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """See to what a plain loop makes a loss of; before DDP itself does."""
        if (
            module is not self._replicated.module
            or self._known
            or self._wrapping.stepping
            or not torch.is_grad_enabled()
        ):
            return
        outputs = [leaf for leaf in tensors_in(output) if leaf.requires_grad]
        self._look(outputs)
        if not self._replicated.find_unused_parameters:
            for leaf in outputs:
                leaf.register_hook(lambda _: self._began())  # type: ignore[no-untyped-call]

    def _returned(self, replicated: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """Let DDP search from what an object holds; it has searched in torch's trees."""
        if replicated is not self._replicated:
            return
        if torch.is_grad_enabled() and hides_tensors(output) and self._searches:
            found = [leaf for leaf in tensors_in(output) if leaf.requires_grad]
            self._replicated.reducer.prepare_for_backward(found)

    @property
    def _searches(self) -> bool:
        return self._replicated.find_unused_parameters and self._replicated.require_backward_grad_sync

    def _look(self, outputs: list[torch.Tensor]) -> None:
        if self._known:
            return
        self._known = True
        reached = reached_from(outputs)
        missing = [] if reached is None else [p for p in self._trained() if p not in reached]
        group = self._wrapping.mesh.data_group
        if true_on_any([bool(missing)], self._wrapping.device, group)[0]:
            # it was built without, and no gradient is there yet
            _rebuild(self._replicated, search=True)
            self._wrapping.calls.append(
                "# find_unused_parameters=True: a loss did not reach all parameters"
            )

    def _follow_flags(self, replicated: nn.Module, _args: tuple[Any, ...]) -> None:
        """Let DDP reduce what asks for gradients now: it hooked what did so when it was built."""
        if replicated is not self._replicated or not torch.is_grad_enabled():
            return
        changed = any(each.requires_grad is not before for each, before in self._asked)
        if self._is_first or changed:
            self.check_held()
            self._asked = [(each, each.requires_grad) for each in self._held.values()]
        trained = set(self._trained())
        # nothing asks where gradients only pass through, as a critic's in a generator's step
        if changed and trained and trained != self._reduced:
            self._reduce(trained if self._is_first else trained | self._reduced, trained)
        self._is_first = False

    def check_held(self) -> None:
        """Refuse parameters that are not those that DDP reduces."""
        now = dict(self._replicated.module.named_parameters())
        others = [name for name in now | self._held if now.get(name) is not self._held.get(name)]
        if others:
            raise WrapError(
                f"{others[0]} is not the parameter that auto_parallelize saw: its gradients would not be "
                "reduced, and its values differ between ranks",
                hint="replace and add modules before auto_parallelize; load values with "
                "load_state_dict(..., assign=False)",
            )

    def _reduce(self, wanted: set[torch.Tensor], trained: set[torch.Tensor]) -> None:
        """Let DDP reduce these; those that do not ask now may again, and are searched for until then."""
        if self._reduced >= trained and self._replicated.find_unused_parameters:
            return
        resting = [each for each in wanted if not each.requires_grad]
        for each in resting:  # DDP takes those alone that ask
            each.requires_grad_(True)
        _rebuild(self._replicated, search=bool(resting) or self._replicated.find_unused_parameters)
        for each in resting:
            each.requires_grad_(False)
        self._reduced = wanted
        self._known, self._checking = self._replicated.find_unused_parameters, False
        self._wrapping.calls.append("# DDP's reducer built again: other parameters ask for gradients")

    def _trained(self) -> list[torch.Tensor]:
        return [each for each in self._replicated.module.parameters() if each.requires_grad]

    def _began(self) -> None:
        """The first backward of a plain loop has begun: see at its end whether all had a part in it."""
        if self._checking:
            return
        self._checking = True
        Variable._execution_engine.queue_callback(self._ended)  # noqa: SLF001  (as torch's own wrappers)

    def _ended(self) -> None:
        without = [name for name, p in self._replicated.module.named_parameters() if _waits(p)]
        if len(without) == len(self._trained()):
            # torch.autograd.grad, of inputs or for a penalty: DDP reduces behind another backward
            self._checking = False
        elif without:
            raise WrapError(
                f"the loss did not reach {without[0]}, though it is in what the model returned: DDP would "
                "wait for its gradient for ever",
                hint="train with parastrat.forward_backward(model, inputs, targets, loss_fn=...), or "
                "return only what the loss reads",
            )


def _waits(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad and parameter.grad is None


def _rebuild(replicated: DistributedDataParallel, *, search: bool) -> None:
    """Let DDP reduce what asks for gradients now, and search each step's graph for it, or not."""
    replicated.find_unused_parameters = search
    # as DDP does when it is unpickled; nothing public builds its reducer anew
    reducer: Any = replicated
    parameters, sparse = reducer._build_params_for_reducer()  # noqa: SLF001
    names = reducer._build_debug_param_to_name_mapping(parameters)  # noqa: SLF001
    reducer._ddp_init_helper(parameters, sparse, names, replicated.static_graph)  # noqa: SLF001
