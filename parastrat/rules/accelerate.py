"""PS61x and PS62x: accelerate's YAML, as ``accelerate launch`` reads it; FSDP's section stands apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_SOURCE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate"
_DOCS = "https://huggingface.co/docs/accelerate"
_FORMAT = ConfigFormat.ACCELERATE

_PARALLEL = "parallelism_config"
#: kinds that accelerate starts with its --multi_gpu
_SEVERAL = tuple(f"MULTI_{name}" for name in ("GPU", "NPU", "MLU", "SDAA", "MUSA", "XPU", "HPU", "NEURON"))
#: axes whose product is the world
_AXES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


def degree(file: ConfigFile, axis: str) -> int:
    """Return the size of an axis of ``parallelism_config``; 1 where it is not stated."""
    return file.number(f"{_PARALLEL}.{_PARALLEL}_{axis}_size") or 1


def _key(axis: str) -> str:
    return f"{_PARALLEL}.{_PARALLEL}_{axis}_size"


def fsdp_version(file: ConfigFile) -> int | None:
    """Return FSDP's version; None where the file sets up none."""
    if file.get("fsdp_config") is None:
        return None
    version = file.get("fsdp_config.fsdp_version")
    # accelerate's own default
    return 1 if version is None else int(version) if str(version).isdecimal() else None


@file_rule("PS610", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/parallelism_config.py", covers=("PIT101",))
def axes_multiply_to_the_world(file: ConfigFile) -> Iterator[Hit]:
    """The sizes of parallelism_config must multiply to the number of processes.

    Each process has one place in the mesh. accelerate stops when processes are left over or missing. Where
    all sizes are 1 they become replicas, and beside sequence parallelism DeepSpeed makes its own groups.
    """
    world = file.number("num_processes")
    if degree(file, "sp") > 1:
        return
    sizes = {axis: degree(file, axis) for axis in _AXES}
    product = 1
    for size in sizes.values():
        product *= size
    if world is not None and product not in (1, world):
        factors = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
        yield Hit(
            message=f"{factors} make {product} places for {world} processes",
            fix=f"make the sizes multiply to {world}, or write num_processes: {product}",
            key=_PARALLEL,
        )


@file_rule("PS611", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/commands/launch.py", covers=("PIT117",))
def parallelism_needs_fsdp2(file: ConfigFile) -> Iterator[Hit]:
    """parallelism_config works with FSDP2 alone.

    The mesh shards parameters as DTensors, along several axes. FSDP1 knows flat parameters over one group,
    and accelerate refuses the pair.
    """
    version = fsdp_version(file)
    if file.get(_PARALLEL) is not None and version == 1:
        stated = "fsdp_version is not stated, so 1" if file.get("fsdp_config.fsdp_version") is None else "1"
        yield Hit(
            message=f"parallelism_config with FSDP version {stated}",
            fix="write fsdp_version: 2 in fsdp_config",
            key="fsdp_config.fsdp_version",
        )


@file_rule("PS612", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/parallelism_config.py", covers=("PIT116",))
def one_way_to_split_sequences(file: ConfigFile) -> Iterator[Hit]:
    """Context parallelism and DeepSpeed's sequence parallelism exclude each other.

    Both cut the sequence into one piece a rank: torch's over DTensor, DeepSpeed's by exchanging heads.
    """
    cp, sp = degree(file, "cp"), degree(file, "sp")
    if cp > 1 and sp > 1:
        yield Hit(
            message=f"cp {cp} and sp {sp} both split the sequence", fix="leave one at 1", key=_key("sp")
        )


@file_rule("PS613", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/parallelism_config.py", covers=("PIT115",))
def replicas_need_shards(file: ConfigFile) -> Iterator[Hit]:
    """Replicas beside tensor or context parallelism need a shard axis.

    accelerate knows HSDP, replicas of sharded models, but no DDP of tensor-parallel models.
    """
    replicas, shards = degree(file, "dp_replicate"), degree(file, "dp_shard")
    tp, cp = degree(file, "tp"), degree(file, "cp")
    if replicas > 1 and shards == 1 and (tp > 1 or cp > 1):
        yield Hit(
            message=f"dp_replicate {replicas} with {f'tp {tp}' if tp > 1 else f'cp {cp}'}, and no dp_shard",
            fix=f"write dp_shard_size: {replicas} and dp_replicate_size: 1",
            key=_key("dp_replicate"),
        )


@file_rule("PS618", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/launch.py", covers=("PIT513",))
def processes_are_those_of_all_machines(file: ConfigFile) -> Iterator[Hit]:
    """num_processes counts the processes of all machines together.

    accelerate starts num_processes / num_machines on each. A number for one machine leaves most GPUs
    idle, or does not divide.
    """
    world, machines = file.number("num_processes"), file.number("num_machines")
    if world is not None and machines is not None and machines > 1 and world % machines:
        yield Hit(
            message=f"{world} processes in all cannot be shared by {machines} machines",
            fix=f"write num_processes: {machines} times the GPUs of one machine",
            key="num_processes",
        )


@file_rule("PS619", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/commands/launch.py")
def machine_rank_is_below_their_number(file: ConfigFile) -> Iterator[Hit]:
    """machine_rank counts from 0 to num_machines - 1.

    Each machine has a number of its own. The rendezvous waits for the one that is missing until its time is
    over.
    """
    rank, machines = file.number("machine_rank"), file.number("num_machines") or 1
    if rank is not None and not 0 <= rank < max(1, machines):
        yield Hit(
            message=f"machine_rank {rank} of {machines} machines",
            fix=f"write a number from 0 to {max(1, machines) - 1}, another one on each machine",
            key="machine_rank",
        )


@file_rule("PS620", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/commands/launch.py", covers=("PIT501",))
def machines_know_where_to_meet(file: ConfigFile) -> Iterator[Hit]:
    """Several machines need the address of the first.

    Without main_process_ip each machine waits at its own port, alone, until the time is over. The address
    is the first machine's, and the same in all files.
    """
    machines = file.number("num_machines") or 1
    if (
        machines > 1
        and not file.get("main_process_ip")
        and not file.get("deepspeed_config.deepspeed_hostfile")
    ):
        yield Hit(
            message=f"{machines} machines, and no main_process_ip",
            fix="add main_process_ip and main_process_port: the first machine's, on all of them",
            key="num_machines",
        )


@file_rule("PS621", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/dataclasses.py", covers=("PIT305",))
def deepspeed_is_set_up_once(file: ConfigFile) -> Iterator[Hit]:
    """A DeepSpeed file and accelerate's own keys may not both set up DeepSpeed.

    With deepspeed_config_file accelerate refuses the keys that stand in both places, because it cannot know
    which of them was meant; mixed_precision, at the top, is one of them.
    """
    if file.get("deepspeed_config.deepspeed_config_file") is None:
        return
    if file.get("mixed_precision") is not None and file.get("distributed_type") == "DEEPSPEED":
        yield Hit(
            message="mixed_precision beside deepspeed_config_file",
            fix="remove mixed_precision here, and enable fp16 or bf16 in the file that is named there",
            key="mixed_precision",
        )
    for name in (
        "gradient_accumulation_steps",
        "gradient_clipping",
        "zero_stage",
        "offload_optimizer_device",
        "offload_param_device",
        "offload_optimizer_nvme_path",
        "offload_param_nvme_path",
        "zero3_save_16bit_model",
    ):
        if file.get(f"deepspeed_config.{name}") is not None:
            yield Hit(
                message=f"{name} beside deepspeed_config_file",
                fix=f"remove {name} here, and set it in the file that deepspeed_config_file names",
                key=f"deepspeed_config.{name}",
            )


@file_rule("PS622", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/commands/launch.py")
def kind_and_settings_go_together(file: ConfigFile) -> Iterator[Hit]:
    """distributed_type must be the one that the file sets up.

    Settings of another kind are passed over: with MULTI_GPU an fsdp_config shards nothing, and the model
    that does not fit one GPU runs out of memory.
    """
    kind = file.get("distributed_type")
    for wanted, section in (
        ("FSDP", "fsdp_config"),
        ("DEEPSPEED", "deepspeed_config"),
        ("MEGATRON_LM", "megatron_lm_config"),
    ):
        stated = file.get(section)
        # accelerate makes FSDP of a parallelism_config, whatever the type says
        if stated and kind not in (wanted, None) and not (section == "fsdp_config" and file.get(_PARALLEL)):
            yield Hit(
                message=f"distributed_type {kind} with {section}",
                fix=f"write distributed_type: {wanted}, or remove {section}",
                key="distributed_type",
            )


@file_rule("PS628", Severity.WARNING, _FORMAT, source=f"{_SOURCE}/commands/launch.py")
def several_processes_are_distributed(file: ConfigFile) -> Iterator[Hit]:
    """With distributed_type NO accelerate starts one process.

    The number of processes is then read by nobody: one GPU trains, and the others stand idle.
    """
    kind, world = file.get("distributed_type"), file.number("num_processes")
    if kind in ("NO", False) and world is not None and world > 1 and not file.is_on("use_cpu"):
        yield Hit(
            message=f"distributed_type NO with {world} processes",
            fix="write distributed_type: MULTI_GPU, or num_processes: 1",
            key="distributed_type",
        )


@file_rule("PS672", Severity.WARNING, _FORMAT, source=f"{_SOURCE}/commands/launch.py")
def options_with_defaults_stand_on_the_line(file: ConfigFile) -> Iterator[Hit]:
    """rdzv_backend and enable_cpu_affinity are taken from the command line alone.

    ``accelerate launch`` fills in from its file what the line leaves open. These two have defaults on the
    line, static and off, so that they are never open: in the file they change nothing.
    """
    backend = file.get("rdzv_backend")
    if isinstance(backend, str) and backend != "static":
        yield Hit(
            message=f"rdzv_backend {backend} in the file: accelerate launch takes static all the same",
            fix=f"write accelerate launch --rdzv_backend {backend} ...",
            key="rdzv_backend",
        )
    if file.is_on("enable_cpu_affinity"):
        yield Hit(
            message="enable_cpu_affinity in the file: accelerate launch leaves it off all the same",
            fix="write accelerate launch --enable_cpu_affinity ...",
            key="enable_cpu_affinity",
        )


@file_rule("PS629", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/utils/launch.py", covers=("PIT511",))
def processes_have_the_gpus_that_are_named(file: ConfigFile) -> Iterator[Hit]:
    """gpu_ids must name a GPU for every process of the machine.

    accelerate hides all others. Two processes on one GPU stop when NCCL starts (duplicate GPU detected).
    On one machine it refuses MULTI_GPU, and its like, with a single one.
    """
    stated, world = file.get("gpu_ids"), file.number("num_processes")
    if stated in (None, "all") or isinstance(stated, list | dict) or world is None or file.is_on("use_cpu"):
        return
    named = len([part for part in str(stated).split(",") if part.strip()])
    machines = file.number("num_machines") or 1
    if str(file.get("distributed_type")) in _SEVERAL and named < 2 and machines == 1 and world == 1:
        yield Hit(
            message=f"gpu_ids names {named} GPU for {file.get('distributed_type')}, which wants two",
            fix="write distributed_type: 'NO', or gpu_ids: all",
            key="gpu_ids",
        )
    if starts_several(file) and world > named * machines:
        yield Hit(
            message=f"gpu_ids names {named} GPUs for {world // machines} processes on a machine",
            fix=f"write num_processes: {named * machines}, or gpu_ids: all",
            key="gpu_ids",
        )


def starts_several(file: ConfigFile) -> bool:
    """Return whether accelerate starts more than one process on GPUs."""
    kind = str(file.get("distributed_type"))
    return kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", *_SEVERAL)
