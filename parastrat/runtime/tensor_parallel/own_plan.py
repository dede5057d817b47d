"""The tensor-parallel plan that a model brings with it, as Hugging Face's do.

Source: https://huggingface.co/docs/transformers/perf_infer_gpu_multi (names of the styles).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

from parastrat.runtime.tensor_parallel.layout import Group, Layout, Left, Part, Role, kind_of

_ROLES = {
    "colwise": Role.COLUMN,
    "colwise_rep": Role.COLUMN_GATHERED,
    "colwise_gather_output": Role.COLUMN_GATHERED,
    "rowwise": Role.ROW,
    "rowwise_rep": Role.ROW_OF_WHOLE,
    "rowwise_split_input": Role.ROW_OF_WHOLE,
    "embedding_rowwise": Role.EMBEDDING,
    "replicated_with_grad_allreduce": Role.SUMMED,
}
#: an older name, of releases in which only embeddings had it
_OF_EMBEDDINGS = {"rowwise_rep": Role.EMBEDDING}


def own_layout(module: nn.Module) -> Layout | None:
    """Return what the model's own plan says; None if it brings none.

    Places with a style that is not known here are left, with the whole group that they belong to.
    """
    plan = _own_plan(module)
    if not plan:
        return None
    patterns = [(_pattern(name), style) for name, style in plan.items()]
    parts: dict[str, dict[str, Part]] = defaultdict(dict)
    unknown: dict[str, str] = {}
    places = [name for name, _ in module.named_modules()]
    places += [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for name in places:
        style = next((style for pattern, style in patterns if pattern.fullmatch(name)), None)
        if style is None or style in {"replicate", "local_params"}:
            continue
        home = _home(name)
        role = _role(module, name, style)
        if role is None:
            unknown[home] = (
                f"its plan says {style} for {name.rpartition('.')[2]}, which is not applied here"
            )
        else:
            parts[home][name] = Part(role=role)
    groups = [Group(kind=kind_of(home), parts=held) for home, held in parts.items() if home not in unknown]
    left = {kind_of(home): Left(kind=kind_of(home), reason=reason) for home, reason in unknown.items()}
    return Layout(groups=tuple(groups), left=tuple(left.values()))


def _own_plan(module: nn.Module) -> dict[str, str]:
    """Return styles by the patterns of full module names."""
    for name in ("tp_plan", "_tp_plan"):
        stated: Any = getattr(module, name, None)
        if isinstance(stated, Mapping) and stated:
            return {str(pattern): str(style) for pattern, style in stated.items()}
    stated = getattr(getattr(module, "config", None), "base_model_tp_plan", None)
    if not isinstance(stated, Mapping):
        return {}
    prefix = getattr(module, "base_model_prefix", "")
    start = f"{prefix}." if prefix and hasattr(module, prefix) else ""
    return {start + str(pattern): str(style) for pattern, style in stated.items()}


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"[^.]+".join(re.escape(piece) for piece in name.split("*")))


def _home(name: str) -> str:
    """Return the module that a group is named for: the parent, or the module itself at the top."""
    return name.rpartition(".")[0] if re.search(r"(?<![^.])\d+\.", name) else name


def _role(module: nn.Module, name: str, style: str) -> Role | None:
    try:
        target = module.get_submodule(name)
    except AttributeError:  # a parameter
        return None
    if isinstance(target, nn.Embedding):
        return _OF_EMBEDDINGS.get(style) or (Role.EMBEDDING if style == "embedding_rowwise" else None)
    role = _ROLES.get(style)
    return None if role is Role.EMBEDDING else role
