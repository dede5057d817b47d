"""PS38x and PS39x: when a component of ``torch.distributed`` is, or is no longer, the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType
from parastrat.plan import Offload, Shard
from parastrat.rules.rule import case_rule, guidance, plan_rule
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_DOCS = "https://docs.pytorch.org/docs/stable"
_OVERVIEW = "https://docs.pytorch.org/tutorials/beginner/dist_overview.html"

_CUDA = code_of(DeviceType.CUDA)
_NONE = code_of(Shard.NONE)
_OPTIMIZER = code_of(Shard.OPTIMIZER)
_PARAMETERS = code_of(Shard.PARAMETERS)

_ADAFACTOR, _MUON = code_of(Optimizer.ADAFACTOR), code_of(Optimizer.MUON)
_HERE = code_of(Offload.NONE)

#: share of a step below which what an optimizer takes is not worth a remark
_WORTH = 0.005


@plan_rule("PS390", Severity.INFO, source=f"{_DOCS}/generated/torch.nn.DataParallel.html")
def replicas_in_one_node(p: Columns) -> Mask:
    """Several GPUs of one node are a case for DDP, not for DataParallel.

    DataParallel runs all GPUs from one Python process: it copies the model out in every forward and
    waits for one interpreter lock. DDP has a process per GPU and overlaps its reduction with backward.
    It is faster even on two GPUs, and the only one that goes beyond a node.
    """
    replicas = (p.shard == _NONE) & (p.dp > 1) & (p.tp == 1) & (p.pp == 1) & (p.cp == 1)
    return replicas & (p.device_type == _CUDA) & (p.num_nodes == 1)


@replicas_in_one_node.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"{case.plan.mesh.dp} replicas on one node: DistributedDataParallel, one process per GPU",
        fix="leave torch.nn.DataParallel out; auto_parallelize wraps the model",
    )


@plan_rule("PS391", Severity.INFO, source=_OVERVIEW)
def shards_in_one_node(p: Columns) -> Mask:
    """A model too large for one GPU of a node is a case for FSDP2, not for layers spread over devices.

    Moving layers to different GPUs of one process (`model.to` per layer, `device_map="auto"`) fits the
    model but runs one GPU at a time. It is for inference. FSDP2 fits it and keeps all GPUs busy.
    """
    sharded = (p.shard == _PARAMETERS) & (p.dp_shard * p.cp > 1)
    return sharded & (p.device_type == _CUDA) & (p.num_nodes == 1)


@shards_in_one_node.message
def _(case: Case) -> Hit:
    mesh = case.plan.mesh
    return Hit(
        message=f"each layer is sharded over {mesh.dp_shard * mesh.cp} GPUs, instead of layers put on GPUs",
        fix='leave device_map="auto" and .to() of single layers out: FSDP2 places the weights',
    )


@plan_rule(
    "PS392",
    Severity.INFO,
    source=f"{_DOCS}/distributed.optim.html#torch.distributed.optim.ZeroRedundancyOptimizer",
)
def optimizer_alone_is_sharded(p: Columns) -> Mask:
    """ZeroRedundancyOptimizer shards the optimizer of a DDP model, and nothing else.

    It is the answer when gradients and weights fit on every device and the optimizer's state is what does
    not. It still works. FSDP2 without resharding shards all three for the same traffic, so new code starts
    there.
    """
    return (p.shard == _OPTIMIZER) & (p.dp_shard > 1)


@optimizer_alone_is_sharded.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"the optimizer's state alone is split over {case.plan.mesh.dp_shard} ranks (ZeRO-1)",
        fix="use fsdp2 with reshard_after_forward = false; ZeroRedundancyOptimizer around DDP where "
        "code has it",
    )


@case_rule("PS393", Severity.WARNING, source=f"{_DOCS}/fsdp.html", covers=("PIT413", "PIT419"))
def fsdp1_is_legacy(case: Case) -> Hit | None:
    """New code uses fully_shard (FSDP2), not FullyShardedDataParallel (FSDP1).

    FSDP1 flattens parameters, so that dtype, frozen parts and checkpoints are all or nothing per unit.
    FSDP2 keeps them as DTensors and needs less memory. FSDP1 refuses CPU, and its NO_SHARD is
    deprecated in favour of DDP.
    """
    if case.stack.name != "fsdp1" or case.plan.mesh.world_size == 1:
        return None
    return Hit(
        message=f"{case.plan.strategy} with FullyShardedDataParallel (FSDP1)",
        fix="use --stack torch: torch.distributed.fsdp.fully_shard",
    )


@plan_rule(
    "PS394",
    Severity.ERROR,
    source="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/_adafactor.py",
)
def adafactor_of_divided_parameters(p: Columns) -> Mask:
    """Adafactor needs whole parameters.

    It keeps means of rows and columns, and norms, of which torch 2.13's DTensors know no form in place:
    torch.optim.Adafactor raises in its first step under FSDP2 and tensor parallelism, and that of
    Transformers does too. Rprop, and SGD and Adagrad with fused=True, raise likewise.
    """
    divided = (p.tp > 1) | ((p.shard == _PARAMETERS) & (p.dp_shard * p.cp > 1))
    return divided & (p.optimizer == _ADAFACTOR) & (p.dtensors == 1)


@adafactor_of_divided_parameters.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"adafactor under {case.plan.strategy}: torch.optim.Adafactor raises on divided parameters",
        fix="use --optimizer adamw, or a plan that divides no parameters, where one fits",
    )


@plan_rule("PS395", Severity.ERROR, source="https://kellerjordan.github.io/posts/muon/")
def muon_on_the_host(p: Columns) -> Mask:
    """Muon runs where its matrices can be multiplied.

    It sends each matrix through fifteen products, some 80,000 FLOPs for each weight of a model of width
    4,096: seconds on an accelerator, minutes on a host, whose rate parastrat does not know.
    """
    return (p.optimizer == _MUON) & (p.offload != _HERE) & (p.device_type == _CUDA)


@muon_on_the_host.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"muon with {case.plan.offload} offloaded: its matrix products would run on the host",
        fix="leave the optimizer on the devices, or use --optimizer adamw",
    )


@case_rule("PS396", Severity.INFO, source=f"{_DOCS}/generated/torch.optim.AdamW.html")
def adamw_is_taken_to_be_fused(case: Case) -> Hit | None:
    """AdamW updates in one kernel with fused=True.

    Step times count it so. Without it torch runs one operation after the other over all weights, which read
    and write 20 tensors where 7 are enough; whoever holds all weights, as under DDP, sees that most. It is
    the same arithmetic, on CPUs and GPUs, and of sharded and divided weights too.
    """
    stack, time = case.stack, case.estimate.time
    fused = case.workload.optimizer is Optimizer.ADAMW and not stack.steps_in_one_kernel
    if not fused or stack.steps_by_operation or time.optimizer < _WORTH * time.step:
        return None
    from parastrat.cost.updates import BY_OPERATION  # noqa: PLC0415 - rules about files need no estimates

    longer = BY_OPERATION[Optimizer.ADAMW]
    return Hit(
        message=f"the optimizer takes {100 * time.optimizer / time.step:.1f} % of a step as "
        f"torch.optim.AdamW with fused=True: without, up to {longer:.1f} times as long",
        fix="torch.optim.AdamW(model.parameters(), ..., fused=True)",
    )


@guidance("PS380", source=f"{_DOCS}/rpc.html")
def rpc() -> None:
    """Remote procedure calls are for existing CPU code, not for new work.

    torch.distributed.rpc works in 2.13, over TensorPipe alone, which nobody maintains; every start
    warns. Use it where parameter-server or actor code on CPUs exists. New actor code is better served
    by Ray or Monarch, and models too large for a GPU by FSDP2: RPC was never the way to split one.
    """


@guidance("PS381", source="https://docs.pytorch.org/tutorials/intermediate/rpc_param_server_tutorial.html")
def parameter_server() -> None:
    """A parameter server is no longer the answer to synchronous training.

    All traffic meets at the servers, while a ring all-reduce uses every link alike. It remains for huge
    sparse embeddings that are updated asynchronously, where TorchRec's sharded tables are today's form.
    """


@guidance(
    "PS382",
    source=f"{_DOCS}/distributed.algorithms.join.html",
    covers=("PIT312",),
)
def join() -> None:
    """Join is for ranks with different numbers of batches, under DDP.

    A rank that runs out of data leaves the others waiting in a collective. Padding or dropping the last
    batch is simpler and works with every strategy; where neither is acceptable, the Join context
    shadows the collectives of ranks that are done. It works with DDP, ZeroRedundancyOptimizer and
    LocalSGD, and not with FSDP, tp or pp, whose forward communicates too.
    """


@guidance("PS383", source=f"{_DOCS}/elastic/run.html", covers=("PIT522",))
def distributed_launch() -> None:
    """Use torchrun, not torch.distributed.launch.

    The old launcher is deprecated. It passes --local-rank as an argument, which scripts must parse;
    torchrun sets LOCAL_RANK, restarts failed workers and reports the first failure.
    """


@guidance("PS384", source=f"{_DOCS}/distributed.html#distributed-key-value-store")
def stores() -> None:
    """Ranks meet at a TCPStore, unless something speaks for another.

    TCPStore is the default, with libuv. FileStore serves where no port may be opened and the file system is
    shared and locks soundly; its file must be gone before the next run. HashStore is for threads of one
    process, that is for tests. PrefixStore lets several groups share one store.
    """


@guidance(
    "PS385",
    source=f"{_DOCS}/elastic/run.html#elastic-min-1-max-4-tolerates-up-to-3-membership-changes-or-failures",
)
def elastic() -> None:
    """Elastic node counts suit replicas, not fixed meshes.

    `--nnodes min:max` restarts the workers with another world size. Replicated plans go on after that
    from a checkpoint; a mesh with tp, pp or a shard axis of a fixed size no longer multiplies to the
    world and must be planned again (`parastrat run --replan`).
    """


@guidance(
    "PS386",
    source="https://docs.pytorch.org/tutorials/intermediate/process_group_cpp_extension_tutorial.html",
)
def custom_backend() -> None:
    """A backend of your own is for new hardware, and for tests.

    Backend.register_backend takes one from Python or C++. The interface is experimental; users of existing
    networks have no need for it.
    """


@guidance(
    "PS387", source="https://github.com/pytorch/pytorch/tree/v2.13.0/torch/testing/_internal/distributed"
)
def fake_backend() -> None:
    """The fake backend checks a mesh of any size in one process.

    Its collectives return at once and move nothing: shapes, divisibility and schedules are true,
    numbers are not. `parastrat verify` runs on it.
    """


@guidance("PS388", source="https://github.com/meta-pytorch/torchcomms")
def torchcomms() -> None:
    """Experimental communication layers are for experiments.

    torchcomms is opt-in through TORCH_DISTRIBUTED_USE_TORCHCOMMS and a package of its own, `_dist2` a
    private module, UCC on its way out of torch. None belongs into a default configuration.
    """


@guidance("PS389", source="https://github.com/pytorch/torchft")
def fault_tolerance() -> None:
    """Replicas of HSDP can survive the loss of one with torchft.

    It keeps the other replicas training while one restarts. NCCL's shrink (`shrink_group`) is the same idea
    inside one process group. Both need replicas: a single shard group dies with its first rank.
    """
