"""The pieces of the emitted ``parallelize.py`` for stages that pass several tensors or shapes."""

from __future__ import annotations

IMPORTS = [
    "import copy",
    "from functools import partial",
    "from torch._subclasses.fake_tensor import FakeTensorMode",
    "from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten",
]

STAGE = '''
def returned_by(model: nn.Module, inputs, device: torch.device) -> dict:
    """What each part returns for these inputs: leaves without values, and their tree."""
    found, whole = {{}}, copy.deepcopy(model){cast}
    for name in {{name for stage in STAGES for name in stage}}:
        hook = partial(lambda name, _part, _args, given: found.update({{name: tree_flatten(given)}}), name)
        whole.get_submodule(name).register_forward_hook(hook)
    with FakeTensorMode(allow_non_fake_inputs=True){autocast}:
        whole.to_empty(device=device)
        inputs = tree_map(lambda tensor: torch.empty_like(tensor, device=device){cast_inputs}, inputs)
        whole({takes})
    return {{name: ([*map(without_values, leaves)], tree) for name, (leaves, tree) in found.items()}}


def without_values(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta", requires_grad=leaf.requires_grad)


class Elsewhere:
    """Stands in for a part of another stage: returns what this stage received, and else zeros."""

    def __init__(self, part: nn.Module) -> None:
        part.forward, self.received = self.forward, {{}}

    def forward(self, *_inputs, **_named):
        return tree_unflatten([*map(self.known, range(len(self.leaves)))], self.tree)

    def known(self, place: int):
        leaf = self.leaves[place]
        if place in self.received or not isinstance(leaf, torch.Tensor):
            return self.received.get(place, leaf)
        return torch.zeros({zeros})


class Stage(nn.Module):
    """The model's own forward, with the parts of other stages left out."""

    def __init__(self, model: nn.Module, index: int) -> None:
        super().__init__()
        self.model, self.receives, self.sent = model, RECEIVED[index], {{}}
        self.is_last = index == len(STAGES) - 1
        self.sends = [] if self.is_last else RECEIVED[index + 1]
        others = {{name for stage in STAGES for name in stage}} - {{*STAGES[index]}}
        self.elsewhere = {{name: Elsewhere(model.get_submodule(name)) for name in others}}
        own = {{part for name in STAGES[index] for part in model.get_submodule(name).modules()}}
        left = {{part for name in others for part in model.get_submodule(name).modules()}} - own
        weights = {{weight for part in own for weight in part.parameters(recurse=False)}}
        for part in {{*model.modules()}} - own:
            buffers = part.named_buffers(recurse=False) if part in left else ()
            for name, tensor in [*part.named_parameters(recurse=False), *buffers]:
                if tensor not in weights:
                    delattr(part, name)
                    setattr(part, name, tensor.detach().to("meta"))  # for code that looks at its shape
        for name in {{name for name, _ in self.sends}} - others:
            model.get_submodule(name).register_forward_hook(partial(self.keep, name))

    def keep(self, name: str, _part, _args, output) -> None:
        leaves = tree_flatten(output)[0]
        self.sent |= {{(part, place): leaves[place]{kept} for part, place in self.sends if part == name}}

    def expect(self, returned: dict, device: torch.device) -> None:
        for name, part in self.elsewhere.items():
            part.device, (part.leaves, part.tree) = device, returned[name]

    def forward(self, *received: torch.Tensor, inputs):
        known = dict(zip(self.receives, received))
        for (name, place), tensor in known.items():
            if tensor.requires_grad:
                tensor.register_hook(torch.Tensor.contiguous)  # its gradient is sent back
            self.elsewhere[name].received[place] = tensor{kept}
        output = self.model({takes})
        known |= self.sent
        if self.is_last:
            return output{output}
        # torch can detach neither views nor what is handed on, and Gloo sends no gaps
        return tuple(known[each].clone(memory_format=torch.contiguous_format) for each in self.sends)
'''

ZEROS = "(), dtype=leaf.dtype, device=self.device).expand(leaf.shape"
#: where the forward writes to what parts return
WRITTEN_ZEROS = "leaf.shape, dtype=leaf.dtype, device=self.device"
KEPT = ".clone()"

#: parameters that are cast as FSDP2 casts them, and inputs
CAST = ".to({dtype})"
CAST_INPUTS = ".to({dtype} if tensor.is_floating_point() else tensor.dtype)"
AUTOCAST = ", torch.autocast(device.type, {dtype})"

SCHEDULE = '''\
    def schedule(self, inputs, targets: torch.Tensor):
        """Run the model on fake tensors, so that no stage asks its neighbour for shapes."""
        one = tree_map(lambda tensor: tensor[: len(tensor) // {count}], (inputs, targets))
        returned = returned_by(self.skeleton, one[0], self.device)
        passed = [tuple(returned[name][0][place] for name, place in each) for each in RECEIVED]
        passed = [one[1].to("meta"), *passed[1:], passed[-1]]  # of the first and the last they say nothing
        pp = self.mesh.get_group("pp")
        stages = [
            PipelineStage(stage, i, len(STAGES), self.device, passed[i], passed[i + 1], group=pp)
            for i, stage in self.stages.items()
        ]
        return {schedule}({stages}, {count}, loss_fn=self.loss, scale_grads=False), returned
'''

KEEP = """\
        self.skeleton = skeleton
"""

PREPARE = """\
        inputs, targets = tree_map(lambda tensor: tensor.to(self.device), (inputs, targets))
        if len(targets) % {count}:
            raise ValueError(f"{{len(targets)}} samples are not {count} equal micro-batches")
{positions}\
        shapes = tuple(tensor.shape for tensor in tree_leaves((inputs, targets)))
        if shapes not in self.schedules:
            self.schedules[shapes] = self.schedule(inputs, targets)
"""

CHOSEN = "schedule"
CHOOSE = """\
        schedule, returned = self.schedules[shapes]
        for stage in self.stages.values():
            stage.expect(returned, self.device)
"""

#: before layers are divided and stages drop any
SKELETON = """\
    bare = {tensor: torch.empty_like(tensor, device="meta") for tensor in model.buffers()}
    for weight in model.parameters():
        bare[weight] = nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
    skeleton = copy.deepcopy(model, {id(tensor): meta for tensor, meta in bare.items()})
"""

PARTS_CHECK = """\
    parts, paths = [name for stage in STAGES for name in stage], [path for path, _ in model.named_modules()]
    weights, listed = model.named_parameters(remove_duplicate=False), tuple(f"{name}." for name in parts)
    known = {weight for name, weight in weights if name.startswith(listed)}
    if {*parts} - {*paths} or {*model.parameters()} - known:
        raise ValueError("planned for a model with other parts: plan again from this very model")
"""

#: ranks of one stage see other samples
FOLLOW = """\
        for buffer in nn.ModuleList(self.stages.values()).buffers():
            dist.broadcast(buffer, group=self.data, group_src=0)  # as DDP does: they drift apart
"""

#: before blocks are sharded
NORMS = """\
        # norms with running statistics stay in fp32
        for norm in [part for part in stage.modules() if getattr(part, "running_mean", None) is not None]:
            fully_shard(norm, mesh=options["mesh"], reshard_after_forward=False)
"""
