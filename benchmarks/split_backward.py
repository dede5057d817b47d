"""What it costs the host to run backward in two parts, as zero-bubble pipelines of torch do.

Usage: python benchmarks/split_backward.py

For stages of so many blocks, too small for kernels to matter: processor seconds of torch's
``stage_backward_input`` and ``stage_backward_weight`` together over those of ``stage_backward``, and the
line through them. Its intercept and slope are ``split_launches`` and ``split_launches_per_block`` of
profiles/stacks/torch.toml.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.distributed.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

sys.path.insert(0, str(Path(__file__).resolve().parent))

from handwritten import decoder

#: blocks of a stage
STAGES = (1, 2, 4, 8, 16)
#: so narrow that an operator takes no longer than its launch
WIDTH, FEATURES, TOKENS = 16, 48, 4
REPEATS = 60


def main() -> None:
    """Print the ratio of each stage, and the line."""
    torch.set_num_threads(1)
    decoder.WIDTH, decoder.FEATURES = WIDTH, FEATURES
    ratios = {blocks: ratio_of(blocks) for blocks in STAGES}
    print(f"torch {torch.__version__}")
    for blocks, ratio in ratios.items():
        print(f"{blocks:3} blocks: in two parts {ratio:.2f} times as long")
    slope, intercept = statistics.linear_regression(list(ratios), list(ratios.values()))
    print(f"{intercept:.2f} + {slope:.3f} for each block")


def ratio_of(blocks: int) -> float:
    """Return the processor time of backward in two parts over that of one."""
    stage = nn.Sequential(*(decoder.Block() for _ in range(blocks)))

    def whole(x: torch.Tensor, y: torch.Tensor, gradient: torch.Tensor) -> None:
        stage_backward((y,), (gradient,), [x])

    def halves(x: torch.Tensor, y: torch.Tensor, gradient: torch.Tensor) -> None:
        _, groups = stage_backward_input([y], [gradient], [x], stage.parameters())
        stage_backward_weight(stage.parameters(), groups)

    # in turn, so that both see the same machine
    pairs = [(_seconds(stage, halves), _seconds(stage, whole)) for _ in range(REPEATS)]
    return statistics.median(split / plain for split, plain in pairs)


def _seconds(stage: nn.Module, backward: Callable[..., None]) -> float:
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    y = stage(x)
    start = time.process_time()
    backward(x, y, torch.ones_like(y))
    seconds = time.process_time() - start
    stage.zero_grad()
    return seconds


if __name__ == "__main__":
    main()
