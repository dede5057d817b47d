"""Operators on fake tensors give what torch's own mode gives, also where a like one ran before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, TensorMetadata
from torch.utils._pytree import tree_leaves

from parastrat.runtime.tracing.fake_mode import FakeMode

#: pairs that one trait tells apart, of a tensor or of what is beside it
CALLS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "shape": (lambda: torch.ones(2, 6).t() * 2, lambda: torch.ones(6, 2).t() * 2),
    "format": (lambda: torch.ones(4) + 1, lambda: torch.ones(4, dtype=torch.bfloat16) + 1),
    "strides": (lambda: torch.ones(4, 4).clone(), lambda: torch.ones(4, 4).t().clone()),
    "offset": (lambda: torch.ones(8)[:4][1:], lambda: torch.ones(8)[4:][1:]),
    "storage": (lambda: torch.ones(4)[:2].view(2, 1), lambda: torch.ones(8)[:2].view(2, 1)),
    "gradient": (
        lambda: torch.ones(4).detach().clone(),
        lambda: torch.ones(4, requires_grad=True).detach().requires_grad_().clone(),
    ),
    "conjugate": (
        lambda: torch.ones(4, dtype=torch.complex64) * 1,
        lambda: torch.ones(4, dtype=torch.complex64).conj() * 1,
    ),
    "device": (lambda: torch.ones(4) + 1, lambda: torch.ones(4, device="meta") + 1),
    "number": (lambda: torch.arange(4) * 1, lambda: torch.arange(4) * 1.0),
    "truth": (lambda: torch.arange(4) * 1, lambda: torch.arange(4) * True),
    "option": (lambda: torch.ones(4).to(torch.int32), lambda: torch.ones(4).to(torch.int64)),
    "list": (lambda: torch.cat([torch.ones(2), torch.ones(4)]), lambda: torch.cat([torch.ones(2)] * 3)),
    "keyword": (lambda: torch.ones(4).sum(0, keepdim=True), lambda: torch.ones(4).sum(0, keepdim=False)),
    "several": (lambda: torch.ones(8).split(4), lambda: torch.ones(8).split(2)),
}


def told(result: Any) -> list[Any]:
    return [
        [
            *(leaf.shape, leaf.dtype, leaf.stride(), leaf.storage_offset(), leaf.device),
            *(leaf.untyped_storage().nbytes(), leaf.requires_grad, leaf.is_conj()),
        ]
        for leaf in tree_leaves(result)
    ]


@pytest.mark.parametrize("trait", CALLS)
def test_operators_are_told_apart_by(trait: str) -> None:
    with FakeTensorMode():
        expected = [told(call()) for call in CALLS[trait]]
    with FakeMode():
        for _ in range(2):  # the second time all are known
            assert [told(call()) for call in CALLS[trait]] == expected
        assert [told(call()) for call in reversed(CALLS[trait])] == expected[::-1]


#: pairs of tensors that differ in a trait alone
TENSORS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
    "format": (lambda: torch.ones(4), lambda: torch.ones(4, dtype=torch.int32)),
    "shape": (lambda: torch.ones(4), lambda: torch.ones(4)[:3]),
    "strides": (lambda: torch.ones(4), lambda: torch.ones(4).as_strided((4,), (0,))),
    "offset": (lambda: torch.ones(4)[:2], lambda: torch.ones(4)[2:]),
    "storage": (lambda: torch.ones(4), lambda: torch.ones(8)[:4]),
    "device": (lambda: torch.ones(4), lambda: torch.ones(4, device="meta")),
    "gradient": (lambda: torch.ones(4), lambda: torch.ones(4, requires_grad=True)),
    "conjugate": (lambda: _complex().clone(), lambda: _complex().conj()),
    "negative": (lambda: _complex().imag, lambda: _complex().conj().imag),
}


def _complex() -> torch.Tensor:
    return torch.ones(4, dtype=torch.complex64)


@pytest.mark.parametrize("trait", TENSORS)
def test_tensors_are_told_apart_by(trait: str) -> None:
    mode = FakeMode()

    def key(make: Callable[[], torch.Tensor]) -> list[object]:
        found: list[object] = []
        with mode:
            mode._prep_args_for_hash(found, [make()], None, [])
        return found

    one, other = TENSORS[trait]
    assert key(one) == key(one)
    assert key(one) != key(other)


def test_operators_are_known_the_second_time() -> None:
    with FakeMode():
        tensors = [torch.ones(3, 5, 7) for _ in range(3)]
        tensors[0].sigmoid()
        before = FakeTensorMode.cache_info()
        tensors[1].sigmoid(), tensors[2].sigmoid()
        after = FakeTensorMode.cache_info()
    assert after.hits - before.hits == 2
    assert after.misses == before.misses


def test_torch_knows_no_more_of_a_tensor() -> None:
    # the memory format follows from shape and strides; the last four are those of sparse ones
    assert [field.name for field in fields(TensorMetadata)] == [
        *("dtype", "shape", "stride", "device", "layout", "memory_format", "storage_offset"),
        *("storage_bytes", "requires_grad", "is_quantized", "is_conj", "is_neg", "is_inference"),
        *("is_sparse", "is_coalesced", "dense_dim", "sparse_dim"),
    ]
