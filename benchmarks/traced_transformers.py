"""Model classes of the installed transformers, traced beside a step that runs, in sizes of parity.py.

Usage: python benchmarks/traced_transformers.py [--state FILE] [--minutes N] [--draw N] [--only TEXT]
                                               [--after N] [--mixed]

One class of each family, and then the others, from shrunk configs, in an order that is always the same;
``--draw`` takes the first N, and ``--after`` leaves out as many. A batch has so many samples that what
autograd keeps of them is 8 MiB and twice the weights, at most 64. ``--mixed`` compares under bf16 autocast
instead of in fp32. Results are kept in FILE (traced.jsonl), and what is in it is not run again.
traced_catalogue.py says what is counted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from parity_inputs import calls, inputs_of
from parity_recipes import SHRINKS
from parity_transformers import built, config_of, names
from torch import nn
from traced_catalogue import Call, Try, flags, run

from parastrat.runtime.caches import without_caches

#: of the positions of shrunk configs, 64, some are spent on padding
LENGTH = 48


def tries(name: str) -> Iterator[Try]:
    """Yield a class in each way of shrinking its config, with the inputs that are known for it."""
    for shrink in SHRINKS:
        yield Try(
            build=functools.partial(_built, name, shrink), calls=functools.partial(_calls, name, shrink)
        )


def _calls(name: str, shrink: str, module: nn.Module) -> Iterator[Call]:
    for inputs in calls(type(module)):
        has_tokens = any(part.endswith("input_ids") for part in inputs)
        yield Call(
            make=functools.partial(_batch, name, shrink, inputs), length=LENGTH if has_tokens else None
        )


def _built(name: str, shrink: str) -> nn.Module:
    module = built(name, shrink)
    without_caches(module)  # of parts too, as auto_parallelize does
    return module


def _batch(
    name: str, shrink: str, inputs: tuple[str, ...], samples: int, length: int | None
) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    config = config_of(name, shrink)
    return inputs_of(config, inputs, samples, draw, length=length or LENGTH)


def main() -> None:
    """Run what is not known yet, and print what all of it comes to."""
    parser = flags(__doc__ or "", "traced.jsonl")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--after", type=int, default=0)
    given = parser.parse_args()
    run(names()[given.after : given.draw], tries, given)


if __name__ == "__main__":
    main()
