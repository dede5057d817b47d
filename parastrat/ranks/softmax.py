"""Where Megatron's kernel of scores' softmax runs, and where torch's run one after another instead.

Sources: NVIDIA/Megatron-LM megatron/model/fused_softmax.py @3499542, ``is_kernel_available`` and
``forward_torch_softmax``, as microsoft/Megatron-DeepSpeed @f4157be has them. Before January 2022 (@7a77abd)
keys were at most 2048.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.units import Mask, Numbers

#: keys of a query, a multiple of four
_FEWEST_KEYS, _MOST_KEYS, _KEYS = 17, 4096, 4
#: heads of all samples, of which a block takes as many: 128 threads, 32 a row (``get_batch_per_block``,
#: fused_kernels/scaled_masked_softmax.h). Causal rows up to 128 keys, two a warp, need eight, which is
#: left out
_HEADS = 4


def takes_keys(keys: Numbers) -> Mask:
    """Return whether the kernel runs with so many keys."""
    found: Mask = (keys >= _FEWEST_KEYS) & (keys <= _MOST_KEYS) & (keys % _KEYS == 0)
    return found


def takes_heads(heads: Numbers) -> Mask:
    """Return whether it runs with so many heads, of all samples of a rank's micro-batch."""
    # rounded, as they are quotients; numbers of one plan stay Python's own
    found: Mask = (heads + 0.5) // 1 % _HEADS == 0
    return found
