"""The pieces of the emitted ``parallelize.py`` for stages between which one tensor of one shape passes."""

from __future__ import annotations

STAGE = '''
class Elsewhere(nn.Module):
    """Stands for a part of another stage: returns what this stage received, or hands on its input."""

    received = None

    def forward(self, *inputs, **named) -> torch.Tensor:
        return [*inputs, *named.values()][0] if self.received is None else self.received


class Stage(nn.Module):
    """The model's own forward, with the parts of other stages left out."""

    def __init__(self, model: nn.Module, index: int) -> None:
        super().__init__()
        self.model, self.is_last = model, index == len(STAGES) - 1
        for name in [name for stage in STAGES if stage is not STAGES[index] for name in stage]:
            model.set_submodule(name, Elsewhere())
        self.earlier = [model.get_submodule(name) for stage in STAGES[:index] for name in stage]
        if not self.is_last:
            model.get_submodule(STAGES[index][-1]).register_forward_hook(self.keep)

    def keep(self, _part, _args, output: torch.Tensor) -> None:
        self.sent = output

    def forward(self, received: torch.Tensor, *, inputs: torch.Tensor) -> torch.Tensor:
        if received.requires_grad:
            received.register_hook(torch.Tensor.contiguous)  # its gradient is sent back
        for part in self.earlier:
            part.received = received
        output = self.model(inputs)
{why}        return output{output} if self.is_last else self.sent{copied}
'''

#: of schedules that split backward
WAITING = ".clone()  # weights wait for their gradients"
#: of views
COPIED = ".clone(memory_format=torch.contiguous_format)"
WHY = """\
        # torch cannot detach views, and Gloo sends no gaps
"""

SCHEDULE = '''\
    def schedule(self, inputs: torch.Tensor) -> {schedule}:
        """Tell torch the shapes of a micro-batch, so that no stage asks its neighbour for them."""
        inputs = inputs[: len(inputs) // {count}].to("meta")
        passed = torch.empty({shape}, {dtype}device="meta", requires_grad=True)
        pp = self.mesh.get_group("pp")
        stages = [
            PipelineStage(stage, i, len(STAGES), self.device, passed if i else inputs, passed, group=pp)
            for i, stage in self.stages.items()
        ]
        return {schedule}({stages}, {count}, loss_fn=self.loss, scale_grads=False)
'''

#: where one tensor goes in
PREPARE = """\
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        if len(inputs) % {count}:
            raise ValueError(f"{{len(inputs)}} samples are not {count} equal micro-batches")
{positions}\
        if inputs.shape not in self.schedules:
            self.schedules[inputs.shape] = self.schedule(inputs)
"""

#: what knows the shapes
CHOOSE, CHOSEN = "", "self.schedules[inputs.shape]"
