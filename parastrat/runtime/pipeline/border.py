"""What becomes of tensors at the ends of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from parastrat.runtime.pipeline.route import TensorShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.runtime.pipeline.flow import Source


class Border:
    """How tensors enter and leave.

    Args:
        device: of the stage.
        split: weights get their gradients after torch has detached what left, which operators inside
            may have saved (a ReLU its result).
    """

    def __init__(self, device: torch.device | str = "cpu", *, split: bool = False) -> None:
        self._device = device
        self._split = split

    def stub(self, shape: TensorShape) -> torch.Tensor:
        """Return zeros that nobody reads; they take memory only if somebody writes to them."""
        if shape.changed:
            return torch.zeros(shape.shape, dtype=shape.dtype, device=self._device)
        return torch.zeros((), dtype=shape.dtype, device=self._device).expand(shape.shape)

    def entering(self, tensor: torch.Tensor, shape: TensorShape) -> torch.Tensor:
        """Return what came in; what is written to must not be a leaf of autograd.

        Its gradient will be sent back, and Gloo sends contiguous tensors only.
        """
        taken = tensor.clone() if shape.changed else tensor.view_as(tensor)
        if taken.requires_grad:
            taken.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]  # torch leaves it so
        return taken

    def leaving(self, tensor: torch.Tensor, shape: TensorShape) -> torch.Tensor:
        """Return what can be sent: contiguous, and no view, which torch could not detach."""
        view = tensor._is_view()  # noqa: SLF001  (torch has no public way to ask)
        if self._split or shape.changed or view or not tensor.is_contiguous():
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor

    def passing(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a stage only hands on: torch detaches outputs, and inputs wait for gradients."""
        return tensor.clone()


class Parcel:
    """The tensors that cross one cut, in the same shapes for every micro-batch of a step.

    A last micro-batch of fewer samples travels flat, with zeros behind.

    Args:
        by_micro_batch: what crosses, for each micro-batch.
    """

    def __init__(self, by_micro_batch: Sequence[Sequence[TensorShape]]) -> None:
        self._each = by_micro_batch
        self._padded = any(shapes != by_micro_batch[0] for shapes in by_micro_batch)
        self._sizes = [
            max(shape.shape.numel() for shape in column) for column in zip(*self._each, strict=True)
        ]

    @property
    def shapes(self) -> list[TensorShape]:
        """What is sent and received."""
        if not self._padded:
            return list(self._each[0])
        return [
            TensorShape(shape=torch.Size((size,)), dtype=shape.dtype, requires_grad=shape.requires_grad)
            for size, shape in zip(self._sizes, self._each[0], strict=True)
        ]

    def packed(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return a micro-batch's tensors as they are sent."""
        if not self._padded:
            return tuple(tensors)
        return tuple(
            torch.cat((tensor.reshape(-1), tensor.new_zeros(size - tensor.numel())))
            for tensor, size in zip(tensors, self._sizes, strict=True)
        )

    def unpacked(
        self, index: int, tensors: Sequence[torch.Tensor], sources: Sequence[Source]
    ) -> dict[Source, torch.Tensor]:
        """Return a micro-batch's tensors by where they come from."""
        shapes = self._each[index]
        if self._padded:
            tensors = [
                tensor[: shape.shape.numel()].view(shape.shape)
                for tensor, shape in zip(tensors, shapes, strict=True)
            ]
        return dict(zip(sources, tensors, strict=True))
