"""The pieces of the emitted ``parallelize.py`` for plans that shard parameters (FSDP2, HSDP)."""

from __future__ import annotations

FSDP_IMPORTS = [
    "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
    "from torch.distributed.tensor import DTensor",
]

FROM_FIRST_RANK = '''
def from_first_rank(module: nn.Module, device: str) -> None:
    """Move what is not sharded yet to the device, with rank 0's values: ranks may have drawn others."""
    for tensor in [*module.parameters(), *module.buffers()]:
        if not isinstance(tensor, DTensor) and not tensor.is_meta:
            tensor.data = tensor.data.to(device).contiguous()
            dist.broadcast(tensor.data, src=0)
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
    policy = MixedPrecisionPolicy({policy})
{norms}    # each block is a unit, gathered just before it runs; a tied weight belongs to the root
    uses = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    for block in [model.get_submodule(name) for name in names]:
        inside = Counter(parameter for _, parameter in block.named_parameters(remove_duplicate=False))
        if inside and all(uses[parameter] == count for parameter, count in inside.items()):
            from_first_rank(block, mesh.device_type)
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward={reshard})
    # the rest is one more unit; it stays gathered, because backward begins with it
    from_first_rank(model, mesh.device_type)
{follow}    {returned}fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
{unused}"""

REDUCE_UNUSED = """\
    if routed(model):
        # with zeros for experts that no token of this rank chose: all ranks must send alike
        model.set_reduce_scatter_unused_params(True)  # as of torch 2.13
        leave_unused(model)
    return model
"""

FOLLOW = """\
    # buffers in the checkpoint may be running statistics; the others are constants
    if not buffers.isdisjoint(model.state_dict()):
        follow_first_rank(model)
"""

#: before blocks are wrapped, which renames their buffers
BUFFERS = """\
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
"""

NORMS = """\
    # norms with running statistics stay in fp32
    for norm in [part for part in model.modules() if getattr(part, "running_mean", None) is not None]:
        from_first_rank(norm, mesh.device_type)
        fully_shard(norm, mesh=mesh, reshard_after_forward=False)
"""
