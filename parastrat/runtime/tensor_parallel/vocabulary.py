"""The largest embedding divided by its rows, and the layers that predict them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensor_parallel.layout import Group, Part, Role, kind_of
from parastrat.runtime.tensor_parallel.styles import embedding_rows


def vocabulary_groups(module: nn.Module, known: set[str]) -> Iterator[Group]:
    """Divide the largest embedding by rows, and the layers that predict them."""
    # others may look up more than they are given, as OPT's positions with an offset
    plain = nn.Embedding.forward
    embeddings = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and type(part).forward is plain
    }
    if not embeddings:
        return
    stated = getattr(getattr(module, "config", None), "vocab_size", None)
    counts = [embedding_rows(part) for part in embeddings.values()]
    rows = stated if stated in counts else max(counts)
    blocks = tuple(f"{name}." for name in repeated_blocks(module).names)
    for name, part in module.named_modules():
        if name in known or name.startswith(blocks):  # a block's layer may have as many features
            continue
        if name in embeddings and embedding_rows(part) == rows:
            yield Group(kind=kind_of(name), parts={name: Part(role=Role.EMBEDDING)})
        elif isinstance(part, nn.Linear) and part.out_features == rows:
            yield Group(kind=kind_of(name), parts={name: Part(role=Role.COLUMN_GATHERED)})
