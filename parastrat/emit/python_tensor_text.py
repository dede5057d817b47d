"""The pieces of the emitted ``parallelize.py`` for plans that divide layers (TP)."""

from __future__ import annotations

from parastrat.emit.division import Style

STYLES = {
    Style.COLUMN: "tp.ColwiseParallel()",
    Style.COLUMN_OF_SHARE: "tp.ColwiseParallel(input_layouts=Shard(1))",
    Style.ROW: "tp.RowwiseParallel()",
    Style.ROW_TO_SHARE: "tp.RowwiseParallel(output_layouts=Shard(1))",
    Style.EMBEDDING: "tp.RowwiseParallel(input_layouts=Replicate())",
    Style.EMBEDDING_TO_SHARE: "tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))",
    Style.HEAD: "tp.ColwiseParallel(output_layouts=Replicate())",
    Style.HEAD_OF_SHARE: "tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())",
    Style.HEAD_DIVIDED: "tp.ColwiseParallel(use_local_output=False)",
    Style.WHOLE: "Whole()",
    Style.WHOLE_INSIDE: "WholeInside(Replicate())",
    Style.WHOLE_INSIDE_OF_SHARE: "WholeInside(Partial())",
    Style.WHOLE_OF_SHARE: "tp.SequenceParallel(use_local_output=True)",
    Style.WHOLE_OF_HEADS: "tp.SequenceParallel(sequence_dim=2, use_local_output=True)",
}

LAST = ["output_layouts=Shard(1)", "desired_output_layouts=Replicate()"]

#: what a module is given, and what it gets: layouts before and behind
READERS = {
    Style.READER: ("Replicate()", "Replicate()", ""),
    Style.READER_OF_SHARE: ("Shard(1)", "Replicate()", ""),
    Style.FIRST_OF_SHARE: ("Replicate()", "Shard(1)", "use_local_output=True"),
}

WHOLE = '''
class Whole(tp.ParallelStyle):
    """The same on all ranks. Weights are DTensors, since optimizers take no mixture of both."""

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def known(_, inputs, mesh):
            return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)

        return distribute_module(module, mesh, None, known, lambda _, output, mesh: output.to_local())
'''

WHOLE_INSIDE = '''
class WholeInside(tp.ParallelStyle):
    """Code that reads whole weights as plain tensors, with gradients that are alike or to be added up."""

    def __init__(self, gradients: Replicate | Partial) -> None:
        self.gradients = [gradients]

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        forward = module.forward

        def inside(*inputs, **named):
            own = module.named_parameters(recurse=False)
            plain = {name: weight.to_local(grad_placements=self.gradients) for name, weight in own}
            with _reparametrize_module(module, plain):
                return forward(*inputs, **named)

        module.forward = inside
        return distribute_module(module, mesh)
'''

DIVIDE = '''
def divide(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide layers over the ranks of ``mesh``; this was proven on a small copy of the model."""
{check}    plan = {{
{places}
    }}
    tp.parallelize_module(model, mesh, plan, src_data_rank=None)  # ranks have equal weights already
{edges}{ties}'''

STAGE_EDGES = """\
    # positions are divided inside of a stage; what passes to the next is whole
    first = {first}
    last = {last}
    for own in {runs}:
        tp.parallelize_module(model.get_submodule(own[0]), mesh, first)
        tp.parallelize_module(model.get_submodule(own[-1]), mesh, last)
"""

RUNS = "[[name for name in stage if name in BLOCKS] for stage in STAGES]"

#: DTensor would take uneven shares for even ones
POSITIONS = """\

    def check(_, args):
        if args[0].shape[1] % mesh.size():
            raise ValueError(f"pad {{args[0].shape[1]}} positions to a multiple of {{mesh.size()}}")

    model.get_submodule({start}).register_forward_pre_hook(check)
"""

TIE = """\
    # tied, as before
    model.get_submodule({other}).weight = model.get_submodule({first}).weight
"""

WHOLE_GRADIENTS = '''
def whole_gradients(parameter: nn.Parameter) -> None:
    """Lay a gradient out like its parameter: those of norms are to be added up, others to be cut."""
    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
'''

COUNT_CHECK = """\
    if len(model.get_submodule({container})) != {count}:
        raise ValueError("planned for {count} blocks in {name}: plan again from this very model")
"""

APPLY = """\
    from_first_rank(model, mesh.device_type)
    divide(model, mesh["tp"])
"""

NAMES = """\
    names = [f"{container}.{{index}}" for index in range({count})]
"""

GRADIENTS = """\
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(whole_gradients)
"""

SHARD = """\
    policy = MixedPrecisionPolicy({policy})
    data = mesh[{axes}]
    # each block is a unit, gathered just before it runs
    for block in map(model.get_submodule, names):
        fully_shard(block, mesh=data, mp_policy=policy, reshard_after_forward={reshard})
    # the rest is one more unit; it stays gathered, because backward begins with it
    {returned}fully_shard(model, mesh=data, mp_policy=policy, reshard_after_forward=False)
"""

REPLICATE = """\
    # DDP takes no DTensors; this is torch's replication that does
    for block in map(model.get_submodule, names):
        replicate(block, mesh=mesh["dp_replicate"])
    {returned}replicate(model, mesh=mesh["dp_replicate"])
"""
REDUCE_UNUSED = """\
    # with zeros for experts that no token of this rank chose: all ranks must send alike
    model.set_reduce_scatter_unused_params(True)
    leave_unused(model)
"""
REPLICATE_IMPORT = "from torch.distributed._composable.replicate_with_fsdp import replicate"
