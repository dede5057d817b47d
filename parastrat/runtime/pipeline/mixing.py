"""What a script works out of all weights or gradients at once, of which a stage's rank holds some.

A norm over ``model.parameters()``, a line search, one learning rate found for all: under a pipeline each
rank would find another, of its own stages, and go on without a word. Clipping is told of the other stages
(``training/gradients.py``); what cannot be is refused where it is known, and told of where it may be.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from parastrat.errors import WrapError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.runtime.pipeline.pipelined import Pipeline

#: of models that live
_watched: WeakSet[Mixing] = WeakSet()
#: that step all weights along one direction
_OF_ALL: tuple[type[Any], ...] = (torch.optim.LBFGS,)
#: of a head, or of weights without decay, and of all others
_RATES = 2


class Mixing:
    """Tells once of each way in which a script may have mixed values of this rank's weights.

    Args:
        model: of which this rank has some stages.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [(part, key) for part in model.modules() for key in part._parameters]  # noqa: SLF001  (as elsewhere)
        #: how often each weight and its gradient were written, as the last backward ended
        self._weights: list[int] | None = None
        self._gradients: list[int] = []
        self._told: set[str] = set()
        _watched.add(self)

    def begins(self) -> None:
        """See a forward and backward that begin."""
        if self._weights is not None:
            self._check_weights(self._writes()[0])

    def ended(self) -> None:
        """See a forward and backward that have ended: gradients are complete."""
        self._weights, self._gradients = self._writes()

    def clipped(self) -> None:
        """Know that gradients are about to be scaled by a norm over all stages."""
        self._gradients = []

    def steps(self, optimizer: Any) -> None:
        """See a step of an optimizer.

        Raises:
            WrapError: it steps all weights along one direction.
        """
        own = {id(parameter) for parameter in self._held()}
        if not any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
            return
        name = type(optimizer).__name__
        if isinstance(optimizer, _OF_ALL):
            raise WrapError(
                f"{name} searches along one direction of all weights, and a rank of a pipeline has those "
                "of its stages alone",
                hint="take an optimizer that steps each weight by itself, such as AdamW, or plan without "
                "pp: parastrat recommend --pp 1",
            )
        if not type(optimizer).__module__.startswith("torch.optim"):
            self._tell(
                f"{name} is none of torch.optim's: if it works out anything over all weights or gradients, "
                "as a norm or one rate for all, that is of this rank's stages alone under a pipeline"
            )
        if (rates := _rates_of(optimizer)) > _RATES:
            self._tell(
                f"{name} has {rates} learning rates: where they follow depth as "
                "timm.optim.param_groups_layer_decay counts it, by parameters that the model lists, a rank "
                "of a pipeline counts those of its own stages alone; count layers by the configuration"
            )
        weights, gradients = self._writes()
        self._check_weights(weights)
        if self._gradients and self._gradients != gradients:
            self._tell(
                "gradients were changed between forward_backward and optimizer.step(): what was worked out "
                "over all of them is of this rank's stages alone under a pipeline; "
                "parastrat.clip_grad_norm_ and torch.nn.utils.clip_grad_norm_ clip by the norm of the whole"
            )
        self._weights = None

    def _check_weights(self, writes: list[int]) -> None:
        if self._weights is not None and self._weights != writes:
            self._tell(
                "weights were changed behind forward_backward, and not by optimizer.step(): what was "
                "worked out over all of them, or of their gradients, is of this rank's stages alone under "
                "a pipeline"
            )

    def _writes(self) -> tuple[list[int], list[int]]:
        weights, gradients = [], []
        for parameter in self._held():
            weights.append(parameter._version)  # noqa: SLF001  (no public accessor)
            gradient = parameter.grad
            # another gradient in its place is a change as well
            gradients.append(-1 if gradient is None else hash((id(gradient), gradient._version)))  # noqa: SLF001  (as above)
        return weights, gradients

    def _held(self) -> Iterator[nn.Parameter]:
        for part, key in self._places:
            parameter = part._parameters.get(key)  # noqa: SLF001  (as elsewhere)
            if parameter is not None:
                yield parameter

    def _tell(self, said: str) -> None:
        if said not in self._told:
            self._told.add(said)
            warnings.warn(said, stacklevel=4)


def _rates_of(optimizer: Any) -> int:
    """Return how many learning rates there are; timm keeps factors of them beside."""
    return len({(str(group.get("lr")), group.get("lr_scale")) for group in optimizer.param_groups})


def see_step_of_stages(optimizer: Any) -> None:
    """See to a step of an optimizer that may be of stages' weights.

    Raises:
        WrapError: it needs those of all.
    """
    for each in list(_watched):
        each.steps(optimizer)


def tell_of_averages(pipeline: Pipeline) -> None:
    """Warn of parts that look like averages of others, as momentum encoders do, held by other stages.

    What a script averages by ``zip(online.parameters(), average.parameters())`` would be nothing, or of
    other weights: each list is of the stages of this rank.
    """
    absent = pipeline.absent.names
    for trained, average, names in _alike(pipeline.skeleton):
        if any((f"{trained}.{name}" in absent) != (f"{average}.{name}" in absent) for name in names):
            warnings.warn(
                f"{average} is not trained and looks like {trained}, and other stages of the pipeline hold "
                "it: if it is to be an average of that, no rank can update it, as each lists parameters of "
                "its own stages alone; plan without pp: parastrat recommend --pp 1",
                stacklevel=2,
            )
            return


def _alike(module: nn.Module) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the names of a part that is trained and of one like it that is not, with their parameters'."""
    found: dict[Any, list[tuple[str, nn.Module]]] = {}
    lists = {
        f"{path}."
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential)
    }
    for path, part in module.named_modules():
        # layers of one list are alike, and some may be frozen
        if path.rpartition(".")[0] + "." in lists or any(path.startswith(each) for each in lists):
            continue
        form = tuple((name, tuple(each.shape)) for name, each in part.named_parameters())
        if len(form) > 1:
            found.setdefault(form, []).append((path, part))
    for form, parts in found.items():
        trains = {path: any(each.requires_grad for each in part.parameters()) for path, part in parts}
        online = next((path for path, each in trains.items() if each), None)
        average = next((path for path, each in trains.items() if not each), None)
        if online is not None and average is not None:
            yield online, average, [name for name, _ in form]
