"""A parallelism plan: the mesh, and what is done on each of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parastrat.workload import Precision


class Shard(StrEnum):
    """What is split over ``dp_shard``; each choice includes the ones before it."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Recompute(StrEnum):
    """What backward computes again instead of reading it from memory."""

    NONE = "none"
    #: the attention core alone (Megatron-LM's "selective")
    ATTENTION = "attention"
    #: all but the outputs of a list of expensive operators (torchtitan's "selective")
    SELECTIVE = "selective"
    FULL = "full"

    @property
    def repeats_modules(self) -> bool:
        """Whether backward runs modules again, with their running statistics; attention has none."""
        return self in (Recompute.SELECTIVE, Recompute.FULL)


class Offload(StrEnum):
    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"


class Compile(StrEnum):
    NONE = "none"
    BLOCK = "block"


class ContextMethod(StrEnum):
    """How context parallelism brings keys and values together."""

    ALL_GATHER = "all_gather"
    RING = "ring"


class PipelineSchedule(StrEnum):
    """Schedules of ``torch.distributed.pipelining``, by their names there."""

    GPIPE = "GPipe"
    ONE_F_ONE_B = "1F1B"
    INTERLEAVED = "Interleaved1F1B"
    LOOPED_BFS = "LoopedBFS"
    INTERLEAVED_ZERO_BUBBLE = "InterleavedZeroBubble"
    ZBV = "ZBVZeroBubble"
    DUAL_PIPE_V = "DualPipeV"


class Backend(StrEnum):
    NCCL = "nccl"
    GLOO = "gloo"
    MPI = "mpi"
    XCCL = "xccl"
    HCCL = "hccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of the mesh axes, outermost first.

    The product without ``ep`` is the world size; ``ep`` divides ``dp_shard * cp * tp``, as torchtitan
    defines it.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def dp(self) -> int:
        """Ranks that see different samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.cp * self.tp

    def __str__(self) -> str:
        """The axes that split something, such as ``pp 4 x dp_shard 16 x tp 8``."""
        axes = (
            ("pp", self.pp),
            ("dp_replicate", self.dp_replicate),
            ("dp_shard", self.dp_shard),
            ("cp", self.cp),
            ("tp", self.tp),
        )
        product = " x ".join(f"{axis} {degree}" for axis, degree in axes if degree > 1) or "1"
        return f"{product}, ep {self.ep}" if self.ep > 1 else product


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides how one step runs; hardware and model stay outside."""

    mesh: Mesh
    micro_batch_size: int
    #: micro-batches of one optimizer step on one data-parallel rank; with pp, the schedule's micro-batches
    gradient_accumulation_steps: int
    precision: Precision
    backend: Backend
    shard: Shard = Shard.NONE
    #: free a block's gathered parameters after its forward (FSDP2)
    reshard_after_forward: bool = True
    #: split the activations between tensor-parallel regions along the sequence
    sequence_parallel: bool = False
    #: keep logits split by vocabulary in the loss
    loss_parallel: bool = False
    async_tp: bool = False
    cp_method: ContextMethod = ContextMethod.ALL_GATHER
    recompute: Recompute = Recompute.NONE
    offload: Offload = Offload.NONE
    compile: Compile = Compile.NONE
    #: None without pipeline parallelism
    pp_schedule: PipelineSchedule | None = None
    #: model chunks on one pipeline rank
    virtual_stages: int = 1

    @property
    def global_batch_size(self) -> int:
        """micro_batch_size x gradient_accumulation_steps x dp; cp and tp do not multiply it."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.mesh.dp

    @property
    def strategy(self) -> str:
        """The axes in use by their usual names, such as ``hsdp+tp+pp``."""
        names = [name for name in (self._data_strategy,) if name]
        names += [axis for axis in ("cp", "tp", "ep", "pp") if getattr(self.mesh, axis) > 1]
        return "+".join(names) or "single"

    @property
    def _data_strategy(self) -> str:
        mesh = self.mesh
        if self.shards_parameters:
            return "hsdp" if mesh.dp_replicate > 1 else "fsdp2"
        if mesh.dp == 1:
            return ""
        return {Shard.OPTIMIZER: "zero1", Shard.GRADIENTS: "zero2"}.get(self.shard, "ddp")

    @property
    def shards_parameters(self) -> bool:
        """Whether each rank of ``dp_shard`` and ``cp`` keeps a part of every parameter: FSDP2 and HSDP."""
        return self.shard is Shard.PARAMETERS and self.mesh.dp_shard * self.mesh.cp > 1

    @property
    def rung(self) -> int:
        """The plan's place on the ladder: 0 single, 1 ddp, 2 fsdp2 and hsdp, 3 to 5 see DESIGN."""
        mesh = self.mesh
        if mesh.pp > 1:
            return 5
        model_axes = sum(degree > 1 for degree in (mesh.cp, mesh.tp, mesh.ep))
        if model_axes:
            return 3 if model_axes == 1 else 4
        if mesh.dp == 1:
            return 0
        return 2 if self.shard is Shard.PARAMETERS else 1
