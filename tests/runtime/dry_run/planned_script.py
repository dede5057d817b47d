"""Train what tensor parallelism and pipelines divide, in one line, under the plan of the environment."""

from __future__ import annotations

import copy
import sys

import torch
from runtime.dry_run.models import WORDS, Attending, Fed
from torch.nn import functional

import parastrat

LENGTH, SAMPLES = 8, 4


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    kind = Attending if "attending" in sys.argv else Fed
    given = kind() if "built" in sys.argv else kind
    tokens = torch.randint(WORDS, (SAMPLES, LENGTH + 1))
    model = parastrat.auto_parallelize(given, sample_inputs=tokens[:2, :-1])
    optimizer = torch.optim.AdamW(model.parameters())
    average = copy.deepcopy(model) if "averaged" in sys.argv else None
    while True:
        parastrat.forward_backward(model, tokens[:, :-1], tokens[:, 1:], loss_fn=loss_of)
        optimizer.step()
        optimizer.zero_grad()
        if average is not None:
            with torch.no_grad():
                for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(value, 0.1)


if __name__ == "__main__":
    main()
