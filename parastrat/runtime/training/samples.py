"""What data ranks are given for a step, told of where it is not what one process would train.

A loader without shares gives all ranks the same samples: each step trains a part of the batch, as often as
there are ranks. Where they are given other numbers of samples or targets, a plain loop weighs each rank
alike, and not each target.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from parastrat.runtime.communication.compared import spread, told
from parastrat.runtime.tensors.batches import target_count
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.training.weighed import Weighed

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.wrapped import Wrapped

#: of the most that a rank is given, below which others weigh noticeably more than they should
_EVEN = 0.9


class Samples:
    """Notes what a model's forward is given, and compares it over data ranks; tells once of each finding.

    Args:
        model: wrapped, with data ranks, not in stages.
        wrapping: of it.
    """

    def __init__(self, model: nn.Module, wrapping: Wrapped) -> None:
        self._wrapping = wrapping
        #: of the next forward with gradients
        self.is_asked = True
        #: what tells the inputs of the last one, its samples and targets
        self._given: list[float] = []
        self._earlier: list[float] = []
        self._said: set[str] = set()
        #: targets of a loss that the script computes
        self._weighed = Weighed()
        before: Any = torch.compiler.disable(self._began)  # type: ignore[no-untyped-call]
        after: Any = torch.compiler.disable(self._returned)  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(before, with_kwargs=True)
        model.register_forward_hook(after)

    def _began(self, _model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not (self.is_asked and torch.is_grad_enabled()):
            return
        tensors = [each.detach() for each in tensors_in((args, keywords)) if each.ndim]
        sums = [told(each, self._wrapping.device) for each in tensors]
        numbers = torch.stack(sums).sum(0).tolist() if sums else [0.0, 0.0]
        targets = 0 if "num_items_in_batch" in keywords else target_count(keywords.get("labels"))
        self._given = [*numbers, float(len(tensors[0]) if tensors else 0), float(targets)]

    def _returned(self, _model: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self.is_asked and torch.is_grad_enabled() and not self._wrapping.stepping:
            self._weighed.note(output)

    def compare(self, *, plain: bool) -> None:
        """Compare what the ranks were given last; all of them call it.

        Args:
            plain: a loop's own backward weighs what is in the loss.
        """
        (given, self._given), weight = (self._given, []), self._weighed.taken() or 0.0
        (all_have_some, _), weights, *found = spread(
            [float(bool(given)), weight, *(given or [0.0] * 4)],
            self._wrapping.device,
            self._wrapping.mesh.data_group,
        )
        if not all_have_some:
            return
        *numbers, samples, targets = found
        is_new, self._earlier = self._earlier not in ([], given), given
        # synthetic samples may be the same in all steps
        if is_new and given[1] and all(least == most for least, most in numbers):
            self._tell(
                f"all {self._wrapping.plan.mesh.dp} data-parallel ranks are given the same samples: each "
                "step trains these alone, as often as there are ranks; give each rank its own, as "
                "parastrat.shard_dataloader(loader) and torch's DistributedSampler do",
                "same",
            )
        for (least, most), what in ((samples, "samples"), (targets, "targets")):
            if plain and least < _EVEN * most:
                self._tell(
                    f"ranks are given from {least:.0f} to {most:.0f} {what}, and a plain loss.backward() "
                    "weighs each rank alike: this is not the gradient of the mean over all; "
                    "parastrat.forward_backward weighs each target alike",
                    what,
                )

        self._compare_weights(*weights)

    def _compare_weights(self, least: float, most: float) -> None:
        """Tell where targets of the script's own loss weigh more on some ranks; 0 where none knows."""
        if 0 < least < _EVEN * most and not self._said & {"samples", "targets"}:
            self._tell(
                f"a target weighs {most / least:.2f} times as much in the loss of one data rank as of "
                "another, as where each takes the mean over its own, and a plain loss.backward() weighs "
                "each rank alike: this is not the gradient of the mean over all; "
                "parastrat.forward_backward weighs each target alike",
                "weights",
            )

    def _tell(self, said: str, kind: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(said, stacklevel=2)
