"""Which tensors of a batch are cut into micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.models import plan
from torch.utils._pytree import tree_map

from parastrat.errors import UsageError
from parastrat.runtime.tensors.batches import micro_batches

#: samples of a step, and positions of a sequence
LENGTH = 4
TOKENS = torch.arange(LENGTH * LENGTH).view(LENGTH, LENGTH)
CAUSAL = torch.ones(LENGTH, LENGTH).tril().bool()
PADDING = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]).bool()
STATES = torch.ones(LENGTH, LENGTH, 8)


def shapes(inputs: Any, targets: Any = None, micro: int = 2) -> Any:
    chosen = plan(micro_batch_size=micro, gradient_accumulation_steps=LENGTH // micro)
    return tree_map(
        lambda leaf: None if leaf is None else tuple(leaf.shape),
        micro_batches((inputs, targets), chosen)[0],
    )


@pytest.mark.parametrize(
    "inputs",
    [
        (TOKENS, CAUSAL),
        {"x": STATES, "mask": CAUSAL},
        {"x": TOKENS, "positions": torch.arange(LENGTH)},
        {"x": TOKENS, "mask": CAUSAL.long()},
        {"x": TOKENS, "attention_mask": CAUSAL},
        {"x": TOKENS, "attn_mask": PADDING},
    ],
    ids=["mask", "mask of states", "positions", "format of tokens", "name of padding", "another name"],
)
def test_a_sequence_as_long_as_the_batch_is_no_sample(inputs: Any) -> None:
    with pytest.raises(UsageError, match=r"4 samples of 4 positions, and \w+ ?\w* of shape"):
        shapes(inputs)
    # one micro-batch cuts nothing
    shapes(inputs, micro=LENGTH)


def test_what_is_told_by_its_shape_is_cut_or_whole() -> None:
    assert shapes((STATES, CAUSAL[None], CAUSAL[:, None])) == (((2, 4, 8), (1, 4, 4), (2, 1, 4)), None)
    assert shapes((STATES[:, :3], CAUSAL[:3, :3])) == (((2, 3, 8), (3, 3)), None)


def test_samples_that_look_like_the_first_are_cut() -> None:
    given = {"ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "times": torch.ones(LENGTH)}
    assert shapes(given, TOKENS.float()) == (
        {"ids": (2, 4), "attention_mask": (2, 4), "times": (2,)},
        (2, 4),
    )


@pytest.mark.parametrize("name", ["attention_mask", "src_key_padding_mask", "token_type_ids"])
def test_what_only_samples_have_the_name_of_is_cut(name: str) -> None:
    assert shapes({"x": TOKENS, name: PADDING}) == ({"x": (2, 4), name: (2, 4)}, None)
