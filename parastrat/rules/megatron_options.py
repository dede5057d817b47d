"""PS695 to PS698, PS539: options of Megatron-LM that need, or exclude, each other or a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import world_of
from parastrat.rules.megatron import EXPERTS, OPTIONS
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.config_file import ConfigFile

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron"
_ARGUMENTS = f"{_MEGATRON}/training/arguments.py"
_FORMAT = ConfigFormat.SCRIPT

_EXPERT_TP = "expert-tensor-parallel-size"
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
#: beside which the variable is advice, and Megatron-LM only warns
_ADVISED = ("use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp", "overlap-moe-expert-parallel-comm")
#: NVIDIA's compute capabilities from Blackwell's on, which do without it
_BLACKWELL = 10
#: switches that torch's FSDP2 excludes, and what to do about them
_AGAINST_FSDP2 = {"use-distributed-optimizer": "remove --use-distributed-optimizer", "fp16": "write --bf16"}
_FORMATS_OF_FSDP2 = ("torch_dist", "torch_dcp")
_OFFLOADING = ("cpu-offloading", "cpu-offloading-num-layers")
#: by which weights are divided once more
_WEIGHT_SHARDS = ("tensor-parallel-num-weight-shards", "expert-tensor-parallel-num-weight-shards")


def _options(file: ConfigFile) -> Mapping[str, str]:
    """Return what Megatron-LM is told; nothing where it reads a file of its own in place of that."""
    options: Mapping[str, str] = file.get("megatron") or {}
    return {} if "yaml-cfg" in options else options


def _degree(options: Mapping[str, str], name: str) -> int | None:
    return whole_number(options.get(name, "1"))


def _divides(options: Mapping[str, str], name: str) -> bool:
    return (_degree(options, name) or 1) > 1


@file_rule("PS695", Severity.ERROR, _FORMAT, source=f"{_ARGUMENTS}#L1024", covers=("PIT418",))
def gathers_overlap_beside_reductions(file: ConfigFile) -> Iterator[Hit]:
    """Megatron-LM gathers parameters in parallel only where it divides their optimizer's states.

    --overlap-param-gather is of the distributed optimizer (or of Megatron's FSDP), which gathers what each
    rank has updated. It goes with --overlap-grad-reduce, whose buckets it uses. Without either Megatron
    stops when it starts.
    """
    options = _options(file)
    if "overlap-param-gather" not in options:
        return
    owners = ("use-distributed-optimizer", "use-megatron-fsdp", "use-custom-fsdp")
    # a muon that divides its states itself
    optimizer = options.get("optimizer", "adam")
    if not any(name in options for name in owners) and optimizer in ("adam", "sgd"):
        yield Hit(
            message="--overlap-param-gather without --use-distributed-optimizer",
            fix="add --use-distributed-optimizer, or remove --overlap-param-gather",
            key="own",
        )
    if "overlap-grad-reduce" not in options:
        yield Hit(
            message="--overlap-param-gather without --overlap-grad-reduce",
            fix="add --overlap-grad-reduce, or remove --overlap-param-gather",
            key="own",
        )


@file_rule("PS696", Severity.ERROR, _FORMAT, source=f"{_ARGUMENTS}#L1031", covers=("PIT417",))
def torchs_fsdp2_stands_alone(file: ConfigFile) -> Iterator[Hit]:
    """Torch's FSDP2 in Megatron-LM goes without pipelines, experts' degrees, fp16 and tied embeddings.

    --use-torch-fsdp2 divides parameters, gradients and states itself: beside it there is no distributed
    optimizer, and no fused accumulation of gradients, which is on unless it is switched off. It writes
    checkpoints as torch_dist or torch_dcp. Of anything else Megatron stops when it starts.
    """
    options = _options(file)
    if "use-torch-fsdp2" not in options or "fsdp2-config-path" in options:
        return  # it is MindSpeed's with the latter, which reads more from a file
    for name in (OPTIONS["pp"], EXPERTS):
        if _divides(options, name):
            yield _beside_fsdp2(f"--{name} {options[name]}", f"write --{name} 1")
    for name, fix in _AGAINST_FSDP2.items():
        if name in options:
            yield _beside_fsdp2(f"--{name}", fix)
    stored = options.get("ckpt-format", "torch_dist")
    if stored not in _FORMATS_OF_FSDP2 and not FILLED_IN.search(stored):
        yield _beside_fsdp2(f"--ckpt-format {stored}", "write --ckpt-format torch_dist")
    # a checkpoint may say it as well
    needed = {
        "no-gradient-accumulation-fusion": False,
        "untie-embeddings-and-output-weights": "use-checkpoint-args" in options,
    }
    for name, is_elsewhere in needed.items():
        if name not in options and not is_elsewhere:
            yield Hit(message=f"--use-torch-fsdp2 without --{name}", fix=f"add --{name}", key="own")


def _beside_fsdp2(what: str, fix: str) -> Hit:
    return Hit(
        message=f"{what} with --use-torch-fsdp2", fix=f"{fix}, or remove --use-torch-fsdp2", key="own"
    )


@file_rule(
    "PS697",
    Severity.ERROR,
    _FORMAT,
    source=f"{_MEGATRON}/core/transformer/transformer_config.py#L1884",
    covers=("PIT415",),
)
def offloaded_activations_are_neither_recomputed_nor_piped(file: ConfigFile) -> Iterator[Hit]:
    """Megatron-LM moves activations to the host only without pipelines and without recompute.

    --cpu-offloading (which a number of layers to offload switches on) keeps what backward needs in host
    memory: there is nothing to recompute then. It is for some of the layers, not for all. Otherwise
    Megatron stops while it builds the model.
    """
    options = _options(file)
    moved = whole_number(options.get("cpu-offloading-num-layers", "0")) or 0
    if "cpu-offloading" not in options and not moved:
        return
    name = next(f"--{each}" for each in _OFFLOADING if each in options)
    if _divides(options, OPTIONS["pp"]):
        yield Hit(
            message=f"{name} with --{OPTIONS['pp']} {options[OPTIONS['pp']]}",
            fix=f"remove {name}, or write --{OPTIONS['pp']} 1",
            key="own",
        )
    for other in ("recompute-granularity", "recompute-activations"):
        if other in options:
            yield Hit(
                message=f"{name} with --{other}", fix=f"remove {name}, or recompute nothing", key="own"
            )
    layers = whole_number(options.get("num-layers"))
    if layers and moved >= layers:
        yield Hit(
            message=f"--cpu-offloading-num-layers {moved} of {layers} layers",
            fix=f"write --cpu-offloading-num-layers with less than {layers}",
            key="own",
        )


@file_rule(
    "PS698",
    Severity.ERROR,
    _FORMAT,
    source=f"{_MEGATRON}/core/parallel_state.py#L874",
    covers=("PIT109",),
)
def experts_degrees_divide_the_processes(file: ConfigFile) -> Iterator[Hit]:
    """Megatron-LM's degrees of experts divide the processes of the launch as well.

    Experts have a mesh of their own on the same ranks: their tensor degree, which is that of the other
    layers unless it is stated, their expert degree, and the pipeline's. What is left are copies of each
    expert, of which there is a whole number.
    """
    options, world = _options(file), world_of(file)
    tp, ep, pp = (_degree(options, name) for name in (OPTIONS["tp"], EXPERTS, OPTIONS["pp"]))
    expert_tp = _degree(options, _EXPERT_TP) if _EXPERT_TP in options else tp
    others = _degree(options, OPTIONS["cp"])
    if not (world and tp and ep and pp and expert_tp and others) or world % (tp * pp * others):
        return  # some are unknown, or PS687 tells of them
    if not any(name in options for name in _WEIGHT_SHARDS) and world % (expert_tp * ep * pp):
        yield Hit(
            message=f"--nnodes x --nproc-per-node is {world}, no multiple of "
            f"experts' tp {expert_tp} x ep {ep} x pp {pp}",
            fix=f"write --{_EXPERT_TP} and --{EXPERTS} so that they divide {world // pp}",
            key="own",
        )


@file_rule("PS539", Severity.ERROR, _FORMAT, source=f"{_ARGUMENTS}#L1451", covers=("PIT622",))
def kernels_are_queued_in_one_line(file: ConfigFile) -> Iterator[Hit]:
    """CUDA_DEVICE_MAX_CONNECTIONS is 1 for Megatron-LM's tensor and context parallelism before Blackwell.

    With one queue of the device, communication that is issued first starts first, and compute overlaps it.
    Megatron stops at any other number on devices of Hopper and before, unless its FSDP or overlapped
    experts want more. Which devices these are --on says.
    """
    options, stated = _options(file), file.get(f"env.{_CONNECTIONS}")
    major = file.compute_major
    axes = [axis for axis in ("tp", "cp") if _divides(options, OPTIONS[axis])]
    if not axes or not major or major >= _BLACKWELL or any(name in options for name in _ADVISED):
        return
    if isinstance(stated, str) and not FILLED_IN.search(stated) and stated != "1":
        option = OPTIONS[axes[0]]
        yield Hit(
            message=f"{_CONNECTIONS}={stated} with --{option} {options[option]}",
            fix=f"export {_CONNECTIONS}=1",
            key=f"env.{_CONNECTIONS}",
        )
