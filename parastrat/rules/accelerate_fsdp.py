"""PS61x and PS62x: FSDP in accelerate's YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.accelerate import fsdp_version
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_SOURCE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate"
_DOCS = "https://huggingface.co/docs/accelerate"
_FORMAT = ConfigFormat.ACCELERATE

#: keys of FSDP1, with what became of them
_FSDP1_KEYS = {
    "fsdp_sharding_strategy": "write fsdp_reshard_after_forward: true for FULL_SHARD, else false",
    "fsdp_backward_prefetch": "remove it: FSDP2 always prefetches the next unit in backward",
    "fsdp_sync_module_states": "remove it: FSDP2 broadcasts rank 0's weights by itself",
    "fsdp_use_orig_params": "remove it: FSDP2 always keeps the original parameters",
}


def _named(value: object) -> str:
    """Return a choice as accelerate compares it: in capitals."""
    return str(value).upper()


@file_rule(
    "PS614",
    Severity.WARNING,
    _FORMAT,
    source=f"{_DOCS}/concept_guides/fsdp1_vs_fsdp2",
    covers=("PIT410",),
)
def keys_of_fsdp1(file: ConfigFile) -> Iterator[Hit]:
    """Keys of FSDP1 mean nothing to FSDP2.

    accelerate warns and drops them. A sharding strategy that is dropped becomes the default, full sharding.
    """
    if fsdp_version(file) != 2:
        return
    for name, fix in _FSDP1_KEYS.items():
        if file.get(f"fsdp_config.{name}") is not None:
            yield Hit(message=f"{name} with fsdp_version 2", fix=fix, key=f"fsdp_config.{name}")
    if file.is_on("fsdp_config.fsdp_forward_prefetch"):
        yield Hit(
            message="fsdp_forward_prefetch with fsdp_version 2",
            fix="remove it: FSDP2 has no such switch in accelerate",
            key="fsdp_config.fsdp_forward_prefetch",
        )


@file_rule("PS615", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/launch.py", covers=("PIT411",))
def loading_on_one_rank_needs_broadcast(file: ConfigFile) -> Iterator[Hit]:
    """Loading weights on rank 0 alone needs them sent to the others.

    With fsdp_cpu_ram_efficient_loading the other ranks hold empty tensors until rank 0's are broadcast.
    accelerate refuses to start without fsdp_sync_module_states, in FSDP2 too, which always broadcasts.
    Loading is on unless it is stated, and on where false stands in quotes: text counts as true there.
    """
    loading, sending = (
        f"fsdp_config.{key}" for key in ("fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states")
    )
    if file.get("distributed_type") != "FSDP" or sending in file.quoted or file.get(sending) is not False:
        return
    is_text = loading in file.quoted
    if is_text or file.get(loading) is not False:
        by_itself = "" if file.get(loading) is not None else ", which is on unless it is stated,"
        why = (
            " ('false' in quotes is text, and counts as true)" if file.get(loading) is False else by_itself
        )
        yield Hit(
            message=f"fsdp_cpu_ram_efficient_loading{why} without fsdp_sync_module_states",
            fix="remove fsdp_sync_module_states: it is true unless it is stated",
            key="fsdp_config.fsdp_sync_module_states",
        )


@file_rule("PS616", Severity.WARNING, _FORMAT, source=f"{_DOCS}/usage_guides/fsdp", covers=("PIT423",))
def model_is_wrapped_in_units(file: ConfigFile) -> Iterator[Hit]:
    """FSDP needs units, or it gathers the whole model at once.

    Without a wrap policy the root is the only unit: in forward and backward every rank holds all
    parameters, and nothing of the communication is hidden.
    """
    if fsdp_version(file) is None:
        return
    policy = file.get("fsdp_config.fsdp_auto_wrap_policy")
    if _named(policy) == "NO_WRAP":
        yield Hit(
            message="fsdp_auto_wrap_policy is NO_WRAP: one unit holds the whole model",
            fix="write fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            key="fsdp_config.fsdp_auto_wrap_policy",
        )


@file_rule("PS685", Severity.ERROR, _FORMAT, source="https://github.com/huggingface/accelerate/issues/3854")
def size_of_units_is_stated(file: ConfigFile) -> Iterator[Hit]:
    """SIZE_BASED_WRAP needs fsdp_min_num_params.

    Without it ``accelerate launch`` hands on its default as 100000000.0, which is then read as a whole
    number, and every process stops (invalid literal for int()).
    """
    policy, size = (
        file.get("fsdp_config.fsdp_auto_wrap_policy"),
        file.get("fsdp_config.fsdp_min_num_params"),
    )
    if _named(policy) == "SIZE_BASED_WRAP" and file.get("distributed_type") == "FSDP" and size is None:
        yield Hit(
            message="fsdp_auto_wrap_policy is SIZE_BASED_WRAP, and no size is stated",
            fix="add fsdp_min_num_params: 100000000, or wrap by layer with TRANSFORMER_BASED_WRAP",
            key="fsdp_config.fsdp_auto_wrap_policy",
        )


@file_rule("PS617", Severity.INFO, _FORMAT, source=f"{_DOCS}/usage_guides/fsdp", covers=("PIT422",))
def checkpoints_are_sharded(file: ConfigFile) -> Iterator[Hit]:
    """Save what each rank has, not the whole model on one.

    FULL_STATE_DICT gathers all weights into rank 0's host memory at every checkpoint, while the others
    wait; beyond some ten billion parameters that takes minutes, or the memory ends.
    """
    if _named(file.get("fsdp_config.fsdp_state_dict_type")) == "FULL_STATE_DICT":
        yield Hit(
            message="fsdp_state_dict_type is FULL_STATE_DICT",
            fix="write SHARDED_STATE_DICT, and merge with `accelerate merge-weights` in the end",
            key="fsdp_config.fsdp_state_dict_type",
        )


@file_rule(
    "PS623",
    Severity.ERROR,
    _FORMAT,
    source="https://docs.pytorch.org/docs/stable/fsdp.html",
    covers=("PIT413",),
)
def fsdp1_needs_an_accelerator(file: ConfigFile) -> Iterator[Hit]:
    """FSDP1 does not run on processors.

    It wants a device to gather on, and stops when it is made. FSDP2 shards on processors too, over Gloo.
    """
    if file.is_on("use_cpu") and fsdp_version(file) == 1:
        yield Hit(message="FSDP version 1 with use_cpu", fix="write fsdp_version: 2", key="use_cpu")


@file_rule(
    "PS624",
    Severity.WARNING,
    _FORMAT,
    source="https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.ShardingStrategy",
    covers=("PIT419",),
)
def strategy_shards(file: ConfigFile) -> Iterator[Hit]:
    """FSDP with NO_SHARD is a slower DDP.

    Every rank keeps everything, in flat parameters besides, and torch deprecates it. DDP does the same
    with buckets that overlap.
    """
    if _named(file.get("fsdp_config.fsdp_sharding_strategy")) in ("NO_SHARD", "3"):
        yield Hit(
            message="fsdp_sharding_strategy NO_SHARD shards nothing",
            fix="write distributed_type: MULTI_GPU without fsdp_config, or FULL_SHARD",
            key="fsdp_config.fsdp_sharding_strategy",
        )


#: how accelerate reads a switch that is written as text
_SWITCHES = {"y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0"}


@file_rule("PS625", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/dataclasses.py")
def resharding_is_a_switch(file: ConfigFile) -> Iterator[Hit]:
    """FSDP2's fsdp_reshard_after_forward is true or false.

    The names of FSDP1's strategies are none of the two, and accelerate stops. true is FULL_SHARD, false is
    SHARD_GRAD_OP; hybrid sharding is a matter of parallelism_config.
    """
    stated = file.get("fsdp_config.fsdp_reshard_after_forward")
    if fsdp_version(file) == 2 and stated is not None and str(stated).lower() not in _SWITCHES:
        yield Hit(
            message=f"fsdp_reshard_after_forward {stated} with fsdp_version 2",
            fix=f"write {'true' if _named(stated) == 'FULL_SHARD' else 'true or false'}",
            key="fsdp_config.fsdp_reshard_after_forward",
        )


@file_rule("PS626", Severity.WARNING, _FORMAT, source=f"{_SOURCE}/utils/dataclasses.py")
def resharding_is_of_fsdp2(file: ConfigFile) -> Iterator[Hit]:
    """FSDP1 is told by fsdp_sharding_strategy what to shard.

    fsdp_reshard_after_forward is FSDP2's. With version 1 accelerate takes the strategy alone, which is
    FULL_SHARD where nothing is said, and gathers every parameter twice.
    """
    stated = file.get("fsdp_config.fsdp_reshard_after_forward")
    meant = _named(stated) not in ("TRUE", "FULL_SHARD", "1")
    strategy = file.get("fsdp_config.fsdp_sharding_strategy")
    if fsdp_version(file) == 1 and stated is not None and meant and strategy is None:
        yield Hit(
            message=f"fsdp_reshard_after_forward {str(stated).lower()} with FSDP version 1",
            fix="write fsdp_sharding_strategy: SHARD_GRAD_OP, or fsdp_version: 2",
            key="fsdp_config.fsdp_reshard_after_forward",
        )


@file_rule("PS627", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/dataclasses.py")
def fsdp2_has_no_local_checkpoints(file: ConfigFile) -> Iterator[Hit]:
    """FSDP2 saves full or sharded state dicts.

    LOCAL_STATE_DICT is FSDP1's flat parameters as they lie on each rank. FSDP2 has none, and accelerate
    stops.
    """
    kind = file.get("fsdp_config.fsdp_state_dict_type")
    if fsdp_version(file) == 2 and _named(kind) == "LOCAL_STATE_DICT":
        yield Hit(
            message="fsdp_state_dict_type LOCAL_STATE_DICT with fsdp_version 2",
            fix="write SHARDED_STATE_DICT",
            key="fsdp_config.fsdp_state_dict_type",
        )
