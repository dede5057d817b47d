"""Heads of keys and values that are fewer than the ranks: each rank computes one, which others do too.

Under grouped queries (arXiv 2305.13245) a rank's share of the queries reads one head of keys and values.
Where ranks are a multiple of these heads, several compute the same one: the weights of all are whole on
each rank, which computes with its head's alone, and their gradients are added up, as those of other heads
are zero there. Megatron does so too (core/transformer/attention.py, ``num_query_groups`` below tp).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.runtime.tensor_parallel.layout import Group, Layout, Role
from parastrat.runtime.tensor_parallel.styles import feature_dims

if TYPE_CHECKING:
    from torch import nn

#: attributes that tell how many heads of queries read one of keys
_GROUPS = re.compile(r"groups|n_rep|repeat")


def with_copied_heads(layout: Layout, module: nn.Module, degree: int) -> Layout:
    """Return a layout in which ranks that have no head of keys and values to themselves share one.

    Args:
        layout: a model's own plan; nothing of it is proven.
        module: the model.
        degree: number of ranks.
    """
    groups = tuple(_with_copied(group, module, degree) for group in layout.groups)
    return replace(layout, groups=groups)


def _with_copied(group: Group, module: nn.Module, degree: int) -> Group:
    columns = [name for name, part in group.parts.items() if part.role is Role.COLUMN]
    homes = {name.rpartition(".")[0] for name in columns}
    if len(homes) != 1 or not group.rows:
        return group
    (path,) = homes
    home: Any = module.get_submodule(path)
    queries, keys = _heads_of(home)
    if not keys or keys >= degree or degree % keys or queries % degree:
        return group
    features = {name: _features(module.get_submodule(name)) for name in columns}
    of_one, rest = divmod(max(features.values()), queries)
    copied = [name for name, size in features.items() if size == keys * of_one != queries * of_one]
    if rest or len(copied) == len(columns) or not copied:
        return group
    parts = dict(group.parts) | {name: replace(group.parts[name], copied=keys) for name in copied}
    counts = tuple(
        name for name, value in vars(home).items() if _GROUPS.search(name) and value == queries // keys
    )
    return replace(group, parts=parts, readers_of_one={path: counts} if counts else {})


def _heads_of(home: Any) -> tuple[int, int]:
    """Return an attention's heads of queries, and of keys; zeros where it does not say."""
    config = vars(home).get("config")
    found = []
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(home, name, None)
        count = getattr(config, name, None) if count is None else count
        found.append(count if type(count) is int and count > 0 else 0)
    return found[0], found[1]


def _features(layer: Any) -> int:
    """Return how many features a linear layer gives; 0: it is none."""
    dims = feature_dims(layer)
    return 0 if dims is None else int(layer.weight.shape[dims[0]])


def divide_readers(module: nn.Module, group: Group, degree: int) -> None:
    """Let attention count the heads of queries on this rank that read its head of keys."""
    keys = max((part.copied for part in group.parts.values()), default=degree)
    for path, names in group.readers_of_one.items():
        part = module.get_submodule(path)
        for name in names:
            setattr(part, name, getattr(part, name) * keys // degree)
