"""PS669 to PS673, PS688, PS699, PS540: launches whose options contradict others, hosts or files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import count_of, world_of
from parastrat.rules.rule import file_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_LAUNCH = "https://github.com/huggingface/accelerate/blob/16cb6eb/src/accelerate/commands/launch.py"
_RUNNER = "https://github.com/deepspeedai/DeepSpeed/blob/edaa722/deepspeed/launcher/runner.py"
_CONFIG = "https://github.com/deepspeedai/DeepSpeed/blob/edaa722/deepspeed/runtime/config.py"
_FORMAT = ConfigFormat.SCRIPT

_KINDS = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")


@file_rule("PS669", Severity.ERROR, _FORMAT, source=_LAUNCH)
def accelerate_starts_one_kind(file: ConfigFile) -> Iterator[Hit]:
    """``accelerate launch`` takes one kind of launch, and what belongs to it.

    It stops before anything is started: at two of --cpu, --multi_gpu, --tpu, --use_deepspeed and
    --use_fsdp; at --multi_gpu for one process; at --use_parallelism_config without --use_fsdp on the same
    line; and where --no_python stands beside --module.
    """
    stated = file.get("accelerate") or {}
    kinds = [name for name in _KINDS if name in stated]
    if len(kinds) > 1:
        yield Hit(
            message=" and ".join(f"--{name}" for name in kinds) + " are two kinds of launch",
            fix="leave one of them",
            key=f"accelerate.{kinds[1]}",
        )
    if "multi_gpu" in stated and count_of(file, "accelerate.num_processes") == 1:
        yield Hit(
            message="--multi_gpu for 1 process",
            fix="remove --multi_gpu, or write --num_processes with the GPUs of all machines",
            key="accelerate.num_processes",
        )
    # what a variable holds may be --use_fsdp
    whole = file.get("started.options") is None
    if "use_parallelism_config" in stated and "use_fsdp" not in stated and whole:
        yield Hit(
            message="--use_parallelism_config without --use_fsdp on the line",
            fix="add --use_fsdp --fsdp_version 2, or leave both to the configuration file",
            key="accelerate.use_parallelism_config",
        )
    if "module" in stated and "no_python" in stated:
        yield Hit(message="--module with --no_python", fix="leave one of them", key="accelerate.no_python")


@file_rule("PS670", Severity.ERROR, _FORMAT, source=_RUNNER)
def deepspeeds_options_agree(file: ConfigFile) -> Iterator[Hit]:
    """Deepspeed's ways to choose GPUs exclude each other, and some need an option beside them.

    It stops at --include beside --exclude, at either beside --num_nodes or --num_gpus, at --no_ssh without
    the machine's --node_rank, and at --elastic_training without --master_addr.
    """
    stated = file.get("deepspeed") or {}
    chosen = [name for name in ("include", "exclude") if stated.get(name)]
    limits = [name for name in ("num_nodes", "num_gpus") if count_of(file, f"deepspeed.{name}") is not None]
    for first, second in [(chosen[:1], chosen[1:]), (chosen[:1], limits[:1])]:
        if first and second:
            yield Hit(
                message=f"--{first[0]} with --{second[0]}",
                fix=f"leave one of them: --{first[0]} names hosts and GPUs, as in worker-0:0,1@worker-1",
                key=f"deepspeed.{second[0]}",
            )
    for name, needed in (("no_ssh", "node_rank"), ("elastic_training", "master_addr")):
        if name in stated and needed not in stated and file.get("started.options") is None:
            yield Hit(
                message=f"--{name} without --{needed}",
                fix=f"add --{needed}" + (", another number on each node" if needed == "node_rank" else ""),
                key=f"deepspeed.{name}",
            )


@file_rule("PS671", Severity.ERROR, _FORMAT, source=_RUNNER)
def hosts_are_those_that_are_asked_for(file: ConfigFile) -> Iterator[Hit]:
    """The file of hosts has a line HOST slots=GPUS for each machine that is asked for.

    deepspeed stops at other lines and at hosts that stand twice. It takes the first --num_nodes of them:
    where there are fewer it trains on those, and says nothing. --num_gpus starts as many processes on each
    host as it says, whatever its slots.
    """
    key = next(
        (key for key in ("deepspeed.hostfile", "accelerate.deepspeed_hostfile") if file.get(key)), ""
    )
    hosts, name = file.get("hosts"), file.get(key) if key else None
    for number, what in (file.get("not_hosts") or {}).items():
        yield Hit(
            message=f"{name}, line {number}: {what}",
            fix="write each host once, with its GPUs: worker-0 slots=8",
            key=key,
        )
    if not hosts:
        return
    nodes, gpus = count_of(file, "deepspeed.num_nodes"), count_of(file, "deepspeed.num_gpus")
    if nodes is not None and nodes > len(hosts):
        yield Hit(
            message=f"--num_nodes {nodes} of {counted(len(hosts), 'host')} in {name}",
            fix=f"write --num_nodes {len(hosts)}, or add the other hosts",
            key="deepspeed.num_nodes",
        )
    fewest = min(hosts, key=lambda host: int(hosts[host]))
    if gpus is not None and gpus > hosts[fewest]:
        yield Hit(
            message=f"--num_gpus {gpus}, and {fewest} has slots={hosts[fewest]} in {name}",
            fix=f"write --num_gpus {hosts[fewest]}",
            key="deepspeed.num_gpus",
        )
    for option in ("include", "exclude"):
        for part in str(file.get(f"deepspeed.{option}") or "").split("@"):
            host = part.partition(":")[0]
            if host and host not in hosts and not FILLED_IN.search(host):
                yield Hit(
                    message=f"--{option} names {host}, which is not in {name}",
                    fix=f"write a host of the file, such as {next(iter(hosts))}",
                    key=f"deepspeed.{option}",
                )


@file_rule("PS673", Severity.ERROR, _FORMAT, source=_CONFIG)
def batch_is_of_so_many_ranks(file: ConfigFile) -> Iterator[Hit]:
    """The batch in DeepSpeed's file must be one of so many processes.

    DeepSpeed stops where train_batch_size is not micro-batch x accumulation x data-parallel ranks. Where
    the script divides the model there are fewer of these than processes, but they divide their number.
    """
    batch, micro, world = (
        file.number("engine.train_batch_size"),
        file.number("engine.train_micro_batch_size_per_gpu"),
        world_of(file),
    )
    steps = file.number("engine.gradient_accumulation_steps")
    # accelerate accumulates once where the file does not say; DeepSpeed as often as its batch asks for
    if file.get("engine.gradient_accumulation_steps") is None and file.get("accelerate") is not None:
        steps = 1
    # elastic training and autotuning choose batches of their own
    chosen = file.is_on("engine.elasticity.enabled") or file.get("deepspeed.autotuning") is not None
    if not world or not batch or not micro or not steps or min(batch, micro, steps) < 1 or chosen:
        return
    ranks, rest = divmod(batch, micro * steps)
    if not rest and world % ranks:
        name = file.get("started.engine") or "its DeepSpeed file"
        key = "started.engine" if file.get("started.engine") else "accelerate"
        yield Hit(
            message=f"{'1 process' if world == 1 else f'{world} processes'}, and {name} has a batch of "
            f"{ranks} ranks ({batch} = {micro} x {steps} x {ranks})",
            fix=f'remove "train_batch_size" there: it follows from the others, as {micro * steps * world}',
            key=key,
        )


@file_rule(
    "PS688",
    Severity.ERROR,
    _FORMAT,
    source="https://github.com/huggingface/accelerate/blob/16cb6eb/src/accelerate/utils/dataclasses.py",
)
def formats_are_the_same_in_both_places(file: ConfigFile) -> Iterator[Hit]:
    """--mixed_precision is the format that DeepSpeed's file enables.

    accelerate puts the format of the line into the file that DeepSpeed gets, and stops where the file
    enables the other one. With the same one, or none in the file, it starts.
    """
    stated = file.get("accelerate.mixed_precision")
    kind = file.get("accelerate.distributed_type")
    if file.get("accelerate.use_deepspeed") is None and kind != "DEEPSPEED":
        return
    other = {"fp16": "bf16", "bf16": "fp16", "fp8": "fp16"}.get(str(stated))
    if other is not None and file.is_on(f"engine.{other}.enabled"):
        yield Hit(
            message=f"--mixed_precision {stated}, and DeepSpeed's file enables {other}",
            fix=f"leave --mixed_precision out, or write {other}",
            key="accelerate.mixed_precision",
        )


#: what transformers reads as a switch that is on; none behind the option is on as well
_ON = frozenset({"", "1", "t", "true", "y", "yes"})


@file_rule(
    "PS699",
    Severity.WARNING,
    _FORMAT,
    source="https://github.com/huggingface/transformers/issues/30404",
    covers=("PIT416",),
)
def activations_are_checkpointed_once(file: ConfigFile) -> Iterator[Hit]:
    """Activations are checkpointed by FSDP's plugin or by the script, not by both.

    fsdp_activation_checkpointing wraps each block, and --gradient_checkpointing of the script computes it
    again inside of that: twice as much, with gathers of its own. transformers' Trainer stops at both.
    """
    is_fsdp = (
        file.get("accelerate.use_fsdp") is not None or file.get("accelerate.distributed_type") == "FSDP"
    )
    plugin = str(file.get("accelerate.fsdp_activation_checkpointing")).lower()
    stated = file.get("own.options") or {}
    names = [
        name
        for name in ("gradient_checkpointing", "gradient-checkpointing")
        if stated.get(name, "false").lower() in _ON
    ]
    if is_fsdp and plugin in _ON - {""} and names:
        yield Hit(
            message=f"--{names[0]} with fsdp_activation_checkpointing: each block is checkpointed twice",
            fix=f"remove --{names[0]}, and leave it to FSDP's plugin",
            key="own",
        )


#: of Ampere, which has multipliers for it
_AMPERE = 8


@file_rule(
    "PS540",
    Severity.WARNING,
    _FORMAT,
    source="https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.tf32",
    covers=("PIT405",),
)
def tf32_is_of_ampere_and_later(file: ConfigFile) -> Iterator[Hit]:
    """TF32 is of NVIDIA's GPUs from Ampere on.

    Those before have no units for it. transformers' Trainer stops at --tf32 there, and others compute in
    float32 as they did. Which devices these are --on says.
    """
    stated = (file.get("own.options") or {}).get("tf32", "false")
    major = file.compute_major
    if major and major < _AMPERE and stated.lower() in _ON:
        yield Hit(
            message=f"--tf32 on devices of compute capability {file.compute_capability}",
            fix="remove --tf32",
            key="own",
        )
