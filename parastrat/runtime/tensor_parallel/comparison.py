"""What a divided copy gave, compared with what the whole one did."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import torch

    from parastrat.runtime.tensor_parallel.computed import Results

#: greatest difference allowed, as a share of the tensor's largest value; rounding in fp32 makes 1e-6
TOLERANCE = 1e-4
#: differences below this share of the largest gradient of all count as none: gradients that are zero by
#: symmetry, such as a key bias's, are rounding alone
FLOOR = 1e-6
#: what differs by so many times as much as the last bit of the weights moves it is not rounding, nor is it
#: by more than this share of the largest gradient; rounding in fp64 makes 1e-14
_FAR, _LEAST = 100, 1e-12


def compared(
    expected: Results,
    got: Results,
    floor: float = FLOOR,
    *,
    moved: Callable[[], Mapping[str, float]] | None = None,
) -> dict[str, float]:
    """Return what differs by more than rounding, and the share by which it does; 1 for what is missing.

    Args:
        expected: of the plain module.
        got: of the divided one.
        floor: gradients that differ by less of the largest of all count as equal.
        moved: tells by how much rounding moves each of the plain module's gradients. Those that differ far
            more do not count as equal, however small they are: a block may add little to what others made.
    """
    largest = max((float(g.abs().max()) for g in expected.gradients.values() if g.numel()), default=0.0)
    pairs = [
        *((f"output {index}", e, g, 0.0) for index, (e, g) in enumerate(_aligned(expected, got))),
        *(
            (f"evaluated output {index}", e, g, 0.0)
            for index, (e, g) in enumerate(_evaluated(expected, got))
        ),
        *((name, e, got.kept.get(name), 0.0) for name, e in expected.kept.items()),
        *((name, e, got.gradients.get(name), floor * largest) for name, e in expected.gradients.items()),
    ]
    found = {name: _apart(e, g, least) for name, e, g, least in pairs}
    differences = {name: share for name, share in found.items() if not share <= TOLERANCE}
    if moved is None:
        return differences
    small = _small(expected, got, expected.gradients.keys() - differences.keys(), _LEAST * largest)
    by = moved() if small else {}
    own = {name: share for name, (apart, share) in small.items() if apart > _FAR * by.get(name, inf)}
    return differences | own


def _small(
    expected: Results, got: Results, names: Collection[str], least: float
) -> dict[str, tuple[float, float]]:
    """Return by how much some gradients differ, where that is more than is allowed of their own size."""
    found = {}
    for name in names:
        gradient, other = expected.gradients[name], got.gradients.get(name)
        if other is not None and gradient.numel():
            apart, share = _between(gradient, other)
            if share > TOLERANCE and apart > least:
                found[name] = apart, share
    return found


def _aligned(expected: Results, got: Results) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    count = max(len(expected.outputs), len(got.outputs))
    filled = [*got.outputs, *[None] * (count - len(got.outputs))]
    return list(zip(expected.outputs, filled, strict=False))


def _evaluated(expected: Results, got: Results) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what was evaluated, but caches: of these each rank keeps a share, which has another shape."""
    both = zip(expected.evaluated, got.evaluated, strict=False)
    return [(e, g) for e, g in both if e.shape == g.shape]


def _apart(expected: torch.Tensor, got: torch.Tensor | None, floor: float) -> float:
    if got is None or got.shape != expected.shape:
        return 1.0
    if not expected.numel():
        return 0.0
    apart, share = _between(expected, got)
    return 0.0 if apart <= floor else share


def _between(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of two tensors with elements, and the share of the first's largest."""
    apart, size = float((expected - got).abs().max()), float(expected.abs().max())
    return apart, apart / size if size else inf
