"""What a script does that a plan does not allow, and what a rank says when another is gone."""

from __future__ import annotations

from parastrat.failures.failure import AS_SEEN, NCCL, TORCH, Blames, Failure, known

#: an operator of torch refuses whole tensors beside divided ones
MIXTURE = known(
    Blames.SCRIPT,
    r"got mixed torch\.Tensor and DTensor",
    "the script brings a divided parameter, or its gradient, together with a whole tensor",
    "take tensors of one kind: copy what auto_parallelize returned, other = copy.deepcopy(model), for an "
    "average or a backup of weights, and make a term of the loss whole, term.full_tensor() if "
    "isinstance(term, DTensor) else term",
    AS_SEEN,
)

#: what torch refuses of divided parameters and their gradients
OF_DIVIDED: tuple[Failure, ...] = (
    MIXTURE,
    known(
        Blames.SCRIPT,
        r"in-place operations that require placement changes are not supported",
        "the script changes in place what each rank has a part of, such as a norm",
        "write it out of place: norm = norm.clamp(min=...)",
        AS_SEEN,
    ),
    known(
        Blames.SCRIPT,
        r"does not have a sharding strategy registered",
        "the script calls an operator that DTensor does not know on a divided parameter or gradient",
        "take the whole, tensor.full_tensor(), or this rank's part, tensor.to_local(), there",
        AS_SEEN,
    ),
    known(
        Blames.SCRIPT,
        r"The differentiated Tensor at index \d+ appears to not have been used in the graph",
        "torch.autograd.grad was asked for weights that FSDP2 gathers: the graph has the gathered ones",
        "use loss.backward() and read p.grad, or plan ddp: parastrat recommend --strategy ddp",
        AS_SEEN,
    ),
    known(
        Blames.SCRIPT,
        r"\.(?:numpy|tolist)\(\) is not supported for tensor subclasses",
        "the script reads the values of a divided parameter or gradient, of which each rank has a part",
        "take the whole, on all ranks: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor",
        AS_SEEN,
    ),
)

SCRIPTS: tuple[Failure, ...] = (
    known(
        Blames.SCRIPT,
        r"No backend type associated with device type (?:cpu|cuda)",
        "the process group has no backend for tensors of that device",
        'let auto_parallelize make it, or init_process_group("cpu:gloo,cuda:nccl")',
        AS_SEEN,
    ),
    known(
        Blames.SCRIPT,
        r"device_id parameter must be an accelerator with an index",
        "init_process_group was given a device without its number",
        'device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])), or let auto_parallelize make it',
        AS_SEEN,
    ),
    known(
        Blames.SCRIPT,
        r"device-side assert triggered",
        "an index is out of range on the device, mostly a token or label beyond the table's rows",
        "run one step on the CPU, which names it; compare the largest token with the vocabulary",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html",
    ),
    *OF_DIVIDED,
    known(
        Blames.SCRIPT,
        r"Expected to have finished reduction in the prior iteration",
        "some parameters took no part in a loss, and DDP waits for their gradients",
        "freeze them, requires_grad_(False), or let the forward use them",
        TORCH + "torch/csrc/distributed/c10d/reducer.cpp",
    ),
)

#: what only follows from another rank's end
PEERS: tuple[Failure, ...] = (
    known(
        Blames.PEER,
        r"Watchdog caught collective operation timeout",
        "a collective was not joined by all ranks in time: one fell behind, ended, or went another way",
        "look at the rank that is not in it (TORCH_FR_BUFFER_SIZE=2000 keeps a record of calls); let no "
        "rank skip a step, an evaluation or a checkpoint that the others take part in",
        TORCH + "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    known(
        Blames.PEER,
        r"watchdog thread has been stuck for \d+ seconds|heartbeat monitor",
        "the device, or Python, has stood still for minutes",
        "look for what holds the interpreter, such as a debugger or a slow file system",
        TORCH + "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    known(
        Blames.PEER,
        r"Timed out waiting \d+ ?ms for (?:recv|send) operation to complete",
        "a peer did not answer: it ended, or has fewer batches",
        "give all ranks as many batches, as parastrat.shard_dataloader does",
        AS_SEEN,
    ),
    known(
        Blames.PEER,
        r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|remote process exited|"
        r"ncclRemoteError|Connection was likely closed|failed to recv, got 0 bytes",
        "another rank ended first",
        "look at that rank's output",
        NCCL + "src/init.cc",
    ),
)
