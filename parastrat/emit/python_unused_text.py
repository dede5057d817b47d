"""The pieces of the emitted ``parallelize.py`` that leave experts which no rank used without gradient."""

from __future__ import annotations

IMPORTS = ["from torch.distributed.fsdp import FSDPModule"]
FOLLOW_IMPORTS = ["from torch.autograd import Variable", "from torch.utils._pytree import tree_leaves"]

#: FSDP2 knows a parameter as a shard, and autograd as what was gathered
UNUSED = '''
class Unused:
    """Leaves what no rank used without gradient: optimizers would move it by the zeros that are reduced."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        self.model, self.group, self.shards, self.before = model, group, {}, []
        self.hooked, self.used = set(), set()
        for path, part in model.named_modules():
            if isinstance(part, FSDPModule):
                hook = torch.compiler.disable(lambda unit, _, path=path: self.gathered(unit, path))
                part.register_forward_pre_hook(hook)

    def gathered(self, unit: nn.Module, path: str) -> None:
        """Hear of the gradients of a unit that FSDP2 has just gathered."""
        for name, parameter in unit.named_parameters(path):
            if parameter.requires_grad and parameter not in self.hooked:
                self.hooked.add(parameter)
                parameter.register_hook(lambda _, name=name: self.used.add(name))

    def begin(self) -> None:
        # those that are gathered now are known; load_state_dict may have replaced others
        self.shards |= {name: p for name, p in self.model.named_parameters() if p not in self.hooked}
        self.before = [name for name, shard in self.shards.items() if shard.grad is None]

    def end(self) -> None:
        doubt = {name for name in self.before if self.shards[name].grad is not None} - self.used
        used = torch.tensor([name not in doubt for name in self.shards], dtype=torch.uint8)
        used = used.to(next(iter(self.shards.values())).device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.group)
        for shard, some in zip(self.shards.values(), used.tolist()):
            shard.grad = shard.grad if some else None
        self.used = {name for name in self.used if self.shards[name].grad is None}  # not reduced yet
'''

#: for loops that are not ours
FOLLOW = '''
def leave_unused(model: nn.Module) -> None:
    """Let each backward leave what no rank used in it without gradient, as one device does."""
    unused, running = Unused(model), []

    def backward(_):
        if not running:
            running.append(True)
            unused.begin()
            # behind what FSDP2 does at the end of a backward
            queue = Variable._execution_engine.queue_callback
            queue(lambda: queue(lambda: (running.clear(), unused.end())))

    def forward(_module, _args, output):
        for tensor in tree_leaves(output) if torch.is_grad_enabled() else ():
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(backward)

    # before FSDP2 gathers anything
    model.register_forward_pre_hook(lambda *_: unused.begin(), prepend=True)
    model.register_forward_hook(forward)
'''
