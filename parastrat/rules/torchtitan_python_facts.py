"""What a torchtitan configuration in Python says, with its defaults; None where that cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import OPEN
from parastrat.rules.torchtitan_facts import degree, number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.config_file import ConfigFile

MICRO_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
STEP_TOKENS = "training.num_tokens_per_train_step"
LENGTH = "training.max_context_length"
MICRO_BATCHES = "parallelism.num_pp_microbatches"
POLICY = "activation_checkpoint.class"
#: torchtitan's defaults
_TOKENS, _LENGTH = 16384, 2048
#: families of mixtures of experts alone; of others the flavor tells
_MIXTURES = ("deepseek_v3", "gpt_oss")


def switch(file: ConfigFile, key: str, *, default: bool) -> bool | None:
    """Return whether something is on; None where that is not known."""
    stated = file.get(key)
    if stated is None:
        return default
    return stated if isinstance(stated, bool) else None


def word(file: ConfigFile, key: str, default: str) -> str | None:
    """Return a text; None where it is not known."""
    stated = file.get(key)
    if stated is None:
        return default
    return stated if isinstance(stated, str) else None


def micro_tokens(file: ConfigFile) -> int | None:
    """Return the tokens of one micro-batch of a data-parallel rank."""
    return number_of(file, MICRO_TOKENS, _TOKENS)


def context_length(file: ConfigFile) -> int | None:
    """Return the longest sequence, in tokens."""
    return number_of(file, LENGTH, _LENGTH)


def micro_batches(file: ConfigFile) -> int | None:
    """Return how many micro-batches a pipeline takes in one round; without one it is 1."""
    pp = degree(file, "pp")
    if pp is None:
        return None
    return number_of(file, MICRO_BATCHES, 1) if pp > 1 else 1


def compiles_model(file: ConfigFile) -> bool | None:
    """Whether the model is compiled."""
    enabled, components = switch(file, "compile.enable", default=False), file.get("compile.components")
    if enabled is not True:
        return enabled
    if components is OPEN:
        return None
    return not isinstance(components, list) or "model" in components


def has_experts(file: ConfigFile) -> bool | None:
    """Whether the model is a mixture of experts."""
    family, flavor = file.get("model_spec.family"), file.get("model_spec.flavor")
    if family in _MIXTURES:
        return True
    if not isinstance(family, str) or not isinstance(flavor, str):
        return None
    return {"llama3": False, "qwen3": "-A" in flavor or "moe" in flavor}.get(family)


def waits_for_the_host(file: ConfigFile) -> bool | None:
    """Whether the exchange of tokens between experts stops for the CPU; None: nobody knows which it is."""
    backend = word(file, "model_spec.moe_comm_backend", "standard")
    if backend in ("standard", "deepep"):
        return True
    if backend == "hybridep" and not file.is_open("model_spec.non_blocking_capacity_factor"):
        return file.get("model_spec.non_blocking_capacity_factor") is None
    return None if backend != "minimal_async_ep" else False


def known_degrees(file: ConfigFile) -> Mapping[str, int]:
    """Return the degrees that are stated, or left at their defaults; without shards that fill the rest."""
    found = {axis: degree(file, axis) for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")}
    return {axis: number for axis, number in found.items() if number is not None and number >= 1}
