"""The pieces of ``parallelize.py``; each is correct torch by itself and says why it is there."""

from __future__ import annotations

from parastrat.plan import Recompute

HEADER = '''\
"""{title}, in plain torch.

    model = parallelize(model, build_mesh())  # then make the optimizer: parameters may be new objects

{loop}
"""
'''

BUILD_MESH = '''
def build_mesh(device_type: str = {device}) -> DeviceMesh:
    """Join the process group that torchrun describes, and lay the ranks out by axis."""
    device = None
    if device_type != "cpu":
        device = torch.device(device_type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    if not dist.is_initialized():{threads}
        dist.init_process_group({backend}, device_id=device)
    return init_device_mesh(device_type, {shape}, mesh_dim_names={names})
'''

#: goes before ``BUILD_MESH``, where Gloo gathers DTensors, as ``parastrat.runtime.communication.gloo`` does
ONE_THREAD = '''
class OneThread(dist.ProcessGroupGloo):
    """Gloo with one worker thread: the two of torch 2.11 to 2.13 corrupt the heap under DTensors."""

    def __init__(self, store, rank, size, timeout, **further):
        options, names = dist.ProcessGroupGloo._Options(), os.environ.get("GLOO_SOCKET_IFNAME", "")
        devices = [dist.ProcessGroupGloo.create_device(interface=name) for name in names.split(",") if name]
        options._devices = devices or [dist.ProcessGroupGloo.create_default_device()]
        options._timeout, options._threads = timeout, 1
        for name, value in further.items():  # from torch 2.14 on
            setattr(options, name, value)
        super().__init__(store, rank, size, options)

'''

#: for ``threads`` of ``BUILD_MESH``
ONE_THREADED = """
        dist.distributed_c10d.ProcessGroupGloo = OneThread"""

BUILD_NO_MESH = '''
def build_mesh(device_type: str = {device}) -> torch.device:
    """One process has no mesh, only its device."""
    return torch.device(device_type)
'''

#: where tokens choose modules
ROUTED = '''
def routed(model: nn.Module) -> list[str]:
    """Name the modules that hold experts, of which tokens choose some, such as model.layers.0.experts."""
    containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    parts = [(path, part, type(part).__name__) for path, part in model.named_modules()]
    several = [part for part in parts if isinstance(part[1], containers) and len(part[1]) > 1]
    stacked = [part for part in parts if [*part[1].parameters(recurse=False)]]
    found = [(path, kind) for path, _, kind in (*several, *stacked)]
    return [path for path, kind in found if "experts" in f"{path.rpartition('.')[2]} {kind}".lower()]
'''

REPEATED_BLOCKS = '''
def repeated_blocks(model: nn.Module) -> list[str]:
    """Name the repeated layers, such as model.layers.0: children of a container that are of one class."""
    containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    stacks = [(path, module) for path, module in model.named_modules() if isinstance(module, containers)]
    parts = [(path, part) for path, stack in stacks for part in stack.children() if [*part.children()]]
    kinds = Counter((path, type(part), tuple(p.shape for p in part.parameters())) for path, part in parts)
    repeated = {kind for (_, kind, shapes), count in kinds.items() if count > 1 and shapes} - {*containers}
    names: list[str] = []
'''

#: a list of experts is no stack of layers, also where it is in none
EXPERTS = """\
    experts = routed(model)
"""

OUTERMOST = """\
    for path, stack in stacks:
        if not any(f"{{path}}.".startswith(f"{{name}}.") for name in {taken}):  # experts are inside a layer
            found = [key for key, layer in stack.named_children() if type(layer) in repeated]
            names += [f"{{path}}.{{key}}" if path else key for key in found]
    return names
"""

_SELECTIVE = '''
def selective():
    """Keep every second matrix multiply, all convolutions and attention; recompute the rest."""
    kept = ("convolution", "_scaled_dot_product_")
    seen = Counter()  # forward and recomputation count apart

    def policy(context, operator, *args, **kwargs):
        name = operator.name().removeprefix("aten::")
        is_matmul = name in {"mm", "addmm", "bmm", "baddbmm"}
        seen[context.is_recompute] += is_matmul
        keep = seen[context.is_recompute] % 2 == 1 if is_matmul else name.startswith(kept)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
'''

_ATTENTION = '''
class CheckpointAttention(torch.overrides.TorchFunctionMode):
    """Keep queries, keys and values of each attention core, and compute it again in backward."""

    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += (is_core := function is nn.functional.scaled_dot_product_attention)
        if is_core and torch.is_grad_enabled():
            return checkpoint(function, *args, use_reentrant=False, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def recomputing_attention(forward, *args, **kwargs):
    with CheckpointAttention() as attention:
        result = forward(*args, **kwargs)
    if not attention.calls:
        raise RuntimeError("nothing is saved: this block does not call scaled_dot_product_attention")
    return result
'''

RECOMPUTE_DEFINITIONS = {
    Recompute.NONE: [],
    Recompute.FULL: [],
    Recompute.SELECTIVE: [_SELECTIVE],
    Recompute.ATTENTION: [_ATTENTION],
}

_WRAPPER_IMPORT = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
)

RECOMPUTE_IMPORTS = {
    Recompute.NONE: [],
    Recompute.FULL: [_WRAPPER_IMPORT],
    Recompute.SELECTIVE: [
        _WRAPPER_IMPORT,
        "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts",
    ],
    Recompute.ATTENTION: [
        "from functools import partial, update_wrapper",
        "from torch.utils.checkpoint import checkpoint",
    ],
}

SIGNATURE = '''
def parallelize(model: nn.Module, mesh: {mesh}) -> nn.Module:
    """Return the model on this rank's device, wrapped for {count}."""
'''

WEIGHTS = """\
    for parameter in filter(torch.is_floating_point, model.parameters()):
        parameter.data = parameter.data.to(torch.{dtype})  # as the optimizer updates it
"""

NO_BUFFERS = """\
    if not {name for name, _ in model.named_buffers()}.isdisjoint(model.state_dict()):
        raise ValueError("buffers in the checkpoint would drift apart: plan again from this very model")
"""

NO_STATISTICS = """\
    if any(getattr(part, "running_mean", None) is not None for part in model.modules()):
        raise ValueError("{reason}")
"""

BLOCKS = """\
    names = repeated_blocks(model)
"""

COUNT_CHECK = """\
    if len(names) != {count}:
        raise ValueError(f"planned for {count} blocks, found {{len(names)}}; name them here: {{names}}")
"""

_WRAP = """\
    # {comment}
    for name in names:
        model.set_submodule(name, checkpoint_wrapper(model.get_submodule(name){context}))
"""

#: after a policy's loop over the blocks
COMPILE_WRAPPED = """\
        model.get_submodule(name).compile()  # equal blocks share one compiled graph
"""

RECOMPUTE = {
    Recompute.NONE: "",
    Recompute.FULL: _WRAP.format(
        comment="keep the inputs of each block, and run it again in backward", context=""
    ),
    Recompute.SELECTIVE: _WRAP.format(
        comment="keep some results of each block, and compute the others again in backward",
        context=", context_fn=selective",
    ),
    Recompute.ATTENTION: """\
    for block in map(model.get_submodule, names):
        block.forward = update_wrapper(partial(recomputing_attention, block.forward), block.forward)
""",
}

COMPILE = """\
    # equal blocks share one compiled graph
    for name in names:
        model.get_submodule(name).compile()
"""

MOVE = """\
    index = None if mesh.device_type == "cpu" else torch.accelerator.current_device_index()
    device = torch.device(mesh.device_type, index)
    model.to(device)
"""

MOVE_ALONE = """\
    device = mesh  # all the mesh that one process has
    model.to(device)
"""

AUTOCAST = """\
    # matrix multiplies in the short format, weights and sums in fp32
    model.forward = torch.autocast(device.type, {dtype})(model.forward)
"""

RETURN = """\
    return model
"""

DDP_ARGUMENTS = """\
        model, device_ids=None if index is None else [index], gradient_as_bucket_view=True
"""
DDP_ARGUMENTS_ROUTED = """\
        model,
        device_ids=None if index is None else [index],
        gradient_as_bucket_view=True,
        find_unused_parameters=bool(routed(model)),  # an expert may see no token of a rank
"""

DDP = """\
    # sends rank 0's weights to all ranks; averages gradients while backward runs
    model = DistributedDataParallel(
{arguments}    )
    # buffers outside the checkpoint are constants: no need to send them before every forward
    buffers = {{name for name, _ in model.module.named_buffers(remove_duplicate=False)}}
    model.broadcast_buffers = not buffers.isdisjoint(model.module.state_dict(keep_vars=True))
    return model
"""
