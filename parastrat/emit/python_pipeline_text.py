"""The pieces of the emitted ``parallelize.py`` for plans with the stages of a pipeline."""

from __future__ import annotations

from parastrat.plan import PipelineSchedule

HEADER = '''\
"""{title}, in plain torch (2.13).

    pipeline = parallelize(model, build_mesh(), loss_fn)  # then an optimizer of pipeline.parameters()
    loss = pipeline.step(inputs, targets)  # forward and backward; clear gradients before

``loss_fn(logits, targets)`` is the sum over targets, as of cross_entropy(..., reduction="sum").
{loop}
"""
'''

SCHEDULES = {
    PipelineSchedule.GPIPE: "ScheduleGPipe",
    PipelineSchedule.ONE_F_ONE_B: "Schedule1F1B",
    PipelineSchedule.INTERLEAVED: "ScheduleInterleaved1F1B",
    PipelineSchedule.LOOPED_BFS: "ScheduleLoopedBFS",
    PipelineSchedule.INTERLEAVED_ZERO_BUBBLE: "ScheduleInterleavedZeroBubble",
    PipelineSchedule.ZBV: "ScheduleZBVZeroBubble",
    PipelineSchedule.DUAL_PIPE_V: "ScheduleDualPipeV",
}

STAGES = """\
BLOCKS = {blocks}
# the parts that each stage runs, in the order of the forward
STAGES = [
{stages}
]
{received}{tied}"""

RECEIVED = """\
# what each stage receives: the part that returns it, and its place among all that this returns
RECEIVED = [
{received}
]
"""

TIED = """\
# one weight that several stages hold, by its name in each
TIED = {{{names}}}
"""

PIPELINE = '''
class Pipeline:
    """This rank's stages."""

    def __init__(self, stages: dict[int, Stage], mesh: DeviceMesh, loss_fn{skeleton}) -> None:
        self.stages, self.mesh, self.loss_fn, self.schedules = stages, mesh, loss_fn, {{}}
        self.device = next(self.parameters()).device
{keep}{set_scale}{setup}
    def parameters(self):
        return nn.ModuleList(self.stages.values()).parameters()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {{k: v for stage in self.stages.values() for k, v in stage.model.state_dict().items()}}

{schedule}
    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = self.loss_fn(output{full}, targets){local} / self.total.clamp(min=1)
        self.mean += loss.detach()
        return loss{scale}
{unscaling}
    def step(self, inputs{type}, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over all targets of the global batch; -100 is none."""
{prepare}\
        self.total, self.mean = (targets != -100).sum(), torch.zeros((), device=self.device)
{sum_targets}\
        first, target = ({counted},) if 0 in self.stages else (), targets if {last} in self.stages else None
{run}{gradients}\
        dist.all_reduce(self.mean, group=self.mesh.get_group("pp"))  # the other stages add nothing
{sum_loss}\
        return self.mean
'''

RUN = """\
        {schedule}.step(*first, target=target, return_outputs=False, inputs=inputs)
"""

RUN_DIVIDED = """\
        with tp.loss_parallel():  # cross_entropy of shares of the logits
            {schedule}.step(*first, target=target, return_outputs=False, inputs=inputs)
"""

POSITIONS = """\
        if inputs.shape[1] % {tp}:
            raise ValueError(f"pad {{inputs.shape[1]}} positions to a multiple of {tp}")
"""

#: stages that drew from one seed would all drop the same elements
RUN_DROPPING = """\
        seed = int(torch.randint(2**62, (1,)))
        with torch.random.fork_rng():
            torch.manual_seed(seed + self.mesh.get_local_rank("pp"))  # else all stages drop the same
            {schedule}.step(*first, target=target, return_outputs=False, inputs=inputs)
"""

TIES = """\
        # the ranks of each pipeline that hold the tied weight
        groups = [[{ranks}] for ranks in mesh.mesh.reshape({pp}, -1).T.tolist()]
        self.tie, _ = dist.new_subgroups_by_enumeration(groups)
"""

SUM_TIES = """\
        for weight in [self.stages[i].model.get_parameter(TIED[i]) for i in TIED if i in self.stages]:
            # each stage has the gradient of its own use
            dist.all_reduce(weight.grad{local}, group={group})
"""

AVERAGE = '''
def average(parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Average gradients over ranks that see different samples, in messages of about 25 MB."""
    has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8).to(parameters[0].device)
    dist.all_reduce(has, dist.ReduceOp.MAX, group=group)  # some ranks may not have used a parameter
    used, packed = [p for p, some in zip(parameters, has.tolist()) if some], []
    for parameter in used:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        packed.append(parameter.grad{local})
        if parameter is used[-1] or sum(gradient.nbytes for gradient in packed) >= 25 * 2**20:
            message = torch.cat([gradient.flatten() for gradient in packed])
            dist.all_reduce(message, dist.ReduceOp.AVG, group=group)
            parts = message.split([gradient.numel() for gradient in packed])
            for gradient, part in zip(packed, parts):
                gradient.copy_(part.view_as(gradient))
            packed = []
'''

SIGNATURE = '''
def parallelize(model: nn.Module, mesh: DeviceMesh, loss_fn) -> Pipeline:
    """Return this rank's stages of the model, for {count}."""
'''

APPLY = """\
    for tensor in [*model.parameters(), *model.buffers()]:
        values = tensor.detach().to(mesh.device_type).contiguous()  # one at a time
        dist.broadcast(values, src=0)  # ranks may have drawn others
        tensor.data.copy_(values)
"""

DIVIDE = """\
    divide(model, mesh["tp"])
"""

NO_CACHES = """\
    model.config.use_cache = False
"""

ONE_STAGE = """\
    rank = mesh.get_local_rank("pp")
    stages = {{rank: Stage(model, rank){move}}}
"""

SEVERAL_STAGES = """\
    # stages are copies that share all tensors, and drop what is not theirs
    memo = {{id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}}
    rank = mesh.get_local_rank("pp")
    own = {indices}
    stages = {{i: Stage(copy.deepcopy(model, {{**memo}}), i){move} for i in own}}
"""

AUTOCAST = """\
    for stage in stages.values():
        # matrix multiplies in the short format, weights and sums in fp32
        stage.forward = torch.autocast(mesh.device_type, {dtype})(stage.forward)
"""

SHARD = """\
    policy = MixedPrecisionPolicy({policy})
    options = {{"mesh": mesh[{axes}], "mp_policy": policy}}
    for index, stage in stages.items():
{norms}\
        # each block is a unit, gathered for all micro-batches of a step; the rest is one more
        for name in [name for name in STAGES[index] if name in BLOCKS]:
            fully_shard(stage.model.get_submodule(name), **options, reshard_after_forward=False)
        fully_shard(stage, **options, reshard_after_forward=False)
{unused}"""

REDUCE_UNUSED = """\
        # with zeros for experts that no token of this rank chose: all ranks must send alike
        stage.set_reduce_scatter_unused_params(True)
"""

#: moving a DTensor to a device loses its hooks
GRADIENTS = """\
    for parameter in [parameter for stage in stages.values() for parameter in stage.parameters()]:
        parameter.register_post_accumulate_grad_hook(whole_gradients)
"""

RETURN = """\
    return Pipeline(stages, mesh, loss_fn{skeleton})
"""

DATA = """\
        self.data = {group}
"""

LEAVE_UNUSED = """\
        self.unused = Unused(nn.ModuleList(stages.values()), self.data)
"""

BEGIN = """\
        self.unused.begin()
"""

END = """\
        self.unused.end()
"""

SUM_TARGETS = """\
        dist.all_reduce(self.total, group=self.data)
"""

CALL_AVERAGE = """\
        average(list(self.parameters()), self.data)
"""

SCALE = """\
        self.scale, self.good_steps = 2.0**16, 0
"""

#: as ``torch.amp.GradScaler`` does, whose scale would differ from rank to rank
UNSCALE = '''
    def unscale(self) -> None:
        """Divide gradients by the scale of the loss; if any overflowed, drop all, and halve it."""
        gradients = [p.grad{local} for p in self.parameters() if p.grad is not None]
        overflow, factor = torch.zeros((), device=self.device), torch.tensor(1 / self.scale).to(self.device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, factor)
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        self.good_steps = 0 if overflow else self.good_steps + 1
        for parameter in self.parameters() if overflow else ():
            parameter.grad = None  # the optimizer leaves it alone
        if overflow or self.good_steps % 2000 == 0:
            self.scale *= 0.5 if overflow else 2
'''

CALL_UNSCALE = """\
        self.unscale()
"""

SUM_LOSS = """\
        dist.all_reduce(self.mean, group=self.data)
"""
