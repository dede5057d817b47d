"""The pieces of ``parallelize.py``; each is correct torch by itself and says why it is there."""

from __future__ import annotations

from parastrat.plan import Recompute

HEADER = '''\
"""{title}, in plain torch.

    mesh = build_mesh()
    model = parallelize(model, mesh)  # then make the optimizer: parameters may be new objects

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
    if not dist.is_initialized():
        dist.init_process_group({backend}, device_id=device)
    return init_device_mesh(device_type, {shape}, mesh_dim_names={names})
'''

BUILD_NO_MESH = '''
def build_mesh(device_type: str = {device}) -> torch.device:
    """One process has no mesh, only its device."""
    return torch.device(device_type)
'''

REPEATED_BLOCKS = '''
def repeated_blocks(model: nn.Module) -> list[str]:
    """Name the repeated layers, such as model.layers.0: children of a container that are of one class."""
    containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    stacks = [(path, module) for path, module in model.named_modules() if isinstance(module, containers)]
    repeated: set[type] = set()
    for _, stack in stacks:
        layers = [layer for layer in stack.children() if any(True for _ in layer.children())]
        kinds = Counter((type(layer), tuple(p.shape for p in layer.parameters())) for layer in layers)
        several = {kind for (kind, shapes), count in kinds.items() if count > 1 and shapes}
        repeated |= several - {*containers}
    names: list[str] = []
    for path, stack in stacks:
        if any(f"{path}.".startswith(f"{name}.") for name in names):
            continue  # inside a layer, such as its experts
        prefix = f"{path}." if path else ""
        names += [prefix + key for key, layer in stack.named_children() if type(layer) in repeated]
    return names
'''

_SELECTIVE = '''
def selective_contexts():
    """Keep every second matrix multiply, all convolutions and attention; recompute the rest."""
    aten = torch.ops.aten
    matmuls = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
    kept = {
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._grouped_mm.default,
    }
    seen = Counter()  # forward and recomputation count apart

    def policy(context, operator, *args, **kwargs):
        if operator in matmuls:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = operator in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
'''

_ATTENTION = '''
class CheckpointAttention(TorchFunctionMode):
    """Keep queries, keys and values of each attention core, and compute it again in backward."""

    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is scaled_dot_product_attention:
            self.calls += 1
            if torch.is_grad_enabled():
                return checkpoint(function, *args, use_reentrant=False, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def recomputing_attention(forward):
    @functools.wraps(forward)
    def under_checkpoints(*args, **kwargs):
        with CheckpointAttention() as attention:
            result = forward(*args, **kwargs)
        if not attention.calls:
            raise RuntimeError("nothing is saved: this block does not call scaled_dot_product_attention")
        return result

    return under_checkpoints
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
        "import functools",
        "from torch.nn.functional import scaled_dot_product_attention",
        "from torch.overrides import TorchFunctionMode",
        "from torch.utils.checkpoint import checkpoint",
    ],
}

SIGNATURE = '''
def parallelize(model: nn.Module, mesh: {mesh}) -> nn.Module:
    """Return the model on this rank's device, wrapped for {count}."""
'''

WEIGHTS = """\
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.{dtype})  # as the optimizer updates it
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
        parent, _, key = name.rpartition(".")
        block = checkpoint_wrapper(model.get_submodule(name){context})
        model.get_submodule(parent).register_module(key, block)
"""

#: after a policy's loop over the blocks
COMPILE_WRAPPED = """\
        block.compile()  # equal blocks share one compiled graph
"""

RECOMPUTE = {
    Recompute.NONE: "",
    Recompute.FULL: _WRAP.format(
        comment="keep the inputs of each block, and run it again in backward", context=""
    ),
    Recompute.SELECTIVE: _WRAP.format(
        comment="keep some results of each block, and compute the others again in backward",
        context=", context_fn=selective_contexts",
    ),
    Recompute.ATTENTION: """\
    # compute attention again in backward instead of keeping its insides
    for name in names:
        block = model.get_submodule(name)
        block.forward = recomputing_attention(block.forward)
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

DDP = """\
    # sends rank 0's weights to all ranks; averages gradients while backward runs
    model = DistributedDataParallel(
        model, device_ids=None if index is None else [index], gradient_as_bucket_view=True
    )
    # buffers outside the checkpoint are constants: no need to send them before every forward
    buffers = {name for name, _ in model.module.named_buffers(remove_duplicate=False)}
    model.broadcast_buffers = not buffers.isdisjoint(model.module.state_dict(keep_vars=True))
    return model
"""
