"""The pieces of the emitted ``parallelize.py`` for plans that shard parameters (FSDP2, HSDP)."""

from __future__ import annotations

FSDP_IMPORTS = [
    "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
    "from torch.distributed.tensor import DTensor",
]

OWNS_PARAMETERS = '''
def owns_parameters(block: nn.Module, model: nn.Module) -> bool:
    """Whether nobody else uses the block's parameters: a tied weight belongs to the root."""
    inside, everywhere = (
        Counter(p for part in module.modules() for p in part.parameters(recurse=False))
        for module in (block, model)
    )
    return bool(inside) and all(everywhere[p] == count for p, count in inside.items())
'''

FROM_FIRST_RANK = '''
def from_first_rank(module: nn.Module, device: torch.device) -> None:
    """Move what is not sharded yet to the device, with rank 0's values: ranks may have drawn others."""
    for tensor in [*module.parameters(), *module.buffers()]:
        if not isinstance(tensor, DTensor) and not tensor.is_meta:
            tensor.data = tensor.data.to(device)
            values = tensor.data.contiguous()
            dist.broadcast(values, src=0)
            tensor.data.copy_(values)
'''

FOLLOW_FIRST_RANK = '''
def follow_first_rank(model: nn.Module) -> None:
    """Send rank 0's buffers before each forward that follows training, as DDP does: they drift apart."""
    drifted = []

    def before(*_):
        for dtype in dict.fromkeys(buffer.dtype for buffer in model.buffers()) if drifted else ():
            buffers = [buffer.detach() for buffer in model.buffers() if buffer.dtype == dtype]
            message = torch.cat([buffer.flatten() for buffer in buffers])
            dist.broadcast(message, src=0)
            for buffer, part in zip(buffers, message.split([buffer.numel() for buffer in buffers])):
                buffer.copy_(part.view_as(buffer))
        drifted.clear()

    def after(module, *_):
        drifted[:] = [True] if module.training or torch.is_grad_enabled() else drifted

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)
'''

SHARD = """\
    device = torch.device(mesh.device_type)  # build_mesh has chosen its index
    policy = MixedPrecisionPolicy({policy})
{norms}    # each block is a unit: gathered as a whole just before it runs
    for block in [model.get_submodule(name) for name in names]:
        if owns_parameters(block, model):
            from_first_rank(block, device)
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward={reshard})
    # the rest is one more unit; it stays gathered, because backward begins with it
    from_first_rank(model, device)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    # buffers in the checkpoint may be running statistics; the others are constants
    buffers = {{name for name, _ in model.named_buffers(remove_duplicate=False)}}
    if not buffers.isdisjoint(model.state_dict()):
        follow_first_rank(model)
    return model
"""

NORMS = """\
    # norms with running statistics stay in fp32
    for norm in [part for part in model.modules() if getattr(part, "running_mean", None) is not None]:
        from_first_rank(norm, device)
        fully_shard(norm, mesh=mesh, reshard_after_forward=False)
"""
