"""Attention of a rank's positions to all of them: keys and values are gathered, queries stay.

What a rank keeps for its backward are its own keys and values; those of the others come again
(the all-gather of arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes

from parastrat.errors import WrapError
from parastrat.runtime.context_parallel.positions import Positions, gathered_for_queries
from parastrat.runtime.tensors.storages import storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: of queries, keys and values: samples and heads come before, features behind
POSITIONS = -2
#: of sequences whose masks are remembered
_LENGTHS = 64
#: the dimension of heads
_HEADS = 1
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention in the blocks of one model.

    Args:
        positions: of each rank.
        gathers_again: backward gathers keys and values, which otherwise it would find kept; where a
            checkpoint computes them again, they come anyway.
    """

    positions: Positions
    gathers_again: bool

    # a compiler breaks its graph here, and does not follow how keys and values are gathered again
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def of_call(self, own: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return what ``scaled_dot_product_attention`` of these arguments would, over all positions.

        Args:
            own: how many positions this rank has.
            args: of the function.
            kwargs: of it.

        Raises:
            WrapError: for queries or keys that are not this rank's positions.
        """
        call = arguments(args, kwargs)
        if isinstance(call["query"], DTensor):
            return self._of_heads(own, call)
        query, key, value = (call.pop(name) for name in _NAMES[:3])
        if {tensor.shape[POSITIONS] for tensor in (query, key, value)} != {own}:
            raise WrapError(
                f"a block attends from {query.shape[POSITIONS]} to {key.shape[POSITIONS]} positions, where "
                f"this rank has {own}: cp divides attention of a sequence to itself",
                hint="plan without cp: parastrat recommend --cp 1",
            )
        return _attended(_Call(query, key, value, call), self.positions, again=self.gathers_again)

    def _of_heads(self, own: int, call: dict[str, Any]) -> torch.Tensor:
        """Attend with this rank's heads, where code between tp's layers works on DTensors."""
        query = call["query"]
        divided = {name: given for name, given in call.items() if isinstance(given, DTensor)}
        if any(given.placements not in ((Shard(_HEADS),), (Replicate(),)) for given in divided.values()):
            raise WrapError(
                "attention of DTensors goes over heads divided otherwise than by tp alone",
                hint="plan without cp: parastrat recommend --cp 1",
            )
        found = self.of_call(own, **(call | {name: given.to_local() for name, given in divided.items()}))
        return DTensor.from_local(found, query.device_mesh, query.placements, run_check=False)


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return by name what ``scaled_dot_product_attention`` is given."""
    return dict(zip(_NAMES, args, strict=False)) | kwargs


@dataclass(frozen=True, slots=True)
class _Call:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    #: what else the function was given
    more: dict[str, Any]


def _attended(call: _Call, positions: Positions, *, again: bool) -> torch.Tensor:
    key, value = (gathered_for_queries(own, positions, POSITIONS) for own in (call.key, call.value))
    if not (again and torch.is_grad_enabled()):
        return _core(call, key, value, positions)
    own = {storage_of(key): call.key.detach(), storage_of(value): call.value.detach()}
    with _gathered_again(own, positions):
        return _core(call, key, value, positions)


def _core(call: _Call, key: torch.Tensor, value: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Attend from this rank's queries to all keys."""
    length = key.shape[POSITIONS]
    stretches = positions.stretches(length)
    if not call.more.get("is_causal"):
        more = {**call.more, "attn_mask": _rows(call.more.get("attn_mask"), length, stretches)}
        return functional.scaled_dot_product_attention(call.query, key, value, **more)
    more = {name: given for name, given in call.more.items() if name not in ("is_causal", "attn_mask")}
    found, begin = [], 0
    for start, stop in stretches:
        query = call.query.narrow(POSITIONS, begin, stop - start)
        begin += stop - start
        keys, values = (each.narrow(POSITIONS, 0, stop) for each in (key, value))
        causal = {"is_causal": True} if start == 0 else {"attn_mask": _causal(stop - start, stop)}
        found.append(functional.scaled_dot_product_attention(query, keys, values, **causal, **more))
    return torch.cat(found, POSITIONS) if len(found) > 1 else found[0]


@lru_cache(maxsize=_LENGTHS)
def _causal(queries: int, keys: int) -> Any:
    """Return that the last of so many queries attends to all keys, the one before to all but the last."""
    with _disable_current_modes():  # torch makes no such tensor where operators are looked at
        return causal_lower_right(queries, keys)


def _rows(mask: Any, length: int, stretches: Sequence[tuple[int, int]]) -> Any:
    """Return the rows of a mask that are this rank's queries'; its columns are all keys."""
    if mask is None:
        return None
    own = sum(stop - start for start, stop in stretches)
    rows, columns = mask.shape[-2:]
    if columns not in (1, length) or rows not in (1, own, length):
        raise WrapError(
            f"attention is masked by {rows} x {columns}, where {own} of {length} positions are this rank's",
            hint="plan without cp: parastrat recommend --cp 1",
        )
    if rows != length or rows == own:
        return mask
    return torch.cat([mask.narrow(-2, start, stop - start) for start, stop in stretches], -2)


@contextmanager
def _gathered_again(own: dict[int, torch.Tensor], positions: Positions) -> Iterator[None]:
    """Keep a rank's own keys and values for backward, and gather those of the others once more there.

    Args:
        own: by the storage of what was gathered from it.
        positions: of each rank.
    """
    uses = Counter[int]()
    left = Counter[int]()
    once: dict[int, torch.Tensor] = {}

    def packed(tensor: torch.Tensor) -> Any:
        place = storage_of(tensor)
        if place not in own:
            return tensor
        uses[place] += 1
        return _Again(place, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpacked(held: Any) -> Any:
        if not isinstance(held, _Again):
            return held
        if held.place not in once:
            once[held.place] = positions.joined(own[held.place], POSITIONS)
            left[held.place] = uses[held.place]
        found = once[held.place].as_strided(held.size, held.stride, held.offset)
        left[held.place] -= 1
        if not left[held.place]:
            del once[held.place]
        return found

    with saved_tensors_hooks(packed, unpacked):
        yield


@dataclass(frozen=True, slots=True)
class _Again:
    """A view of what is gathered in backward."""

    place: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
