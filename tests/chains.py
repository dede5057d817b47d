"""Made-up chains of blocks, to be cut."""

from __future__ import annotations

from parastrat.model import Block, Family, ModelSpec, Operator, OperatorKind, Parameters, Split
from parastrat.saved import Activations, Saved
from parastrat.workload import Precision

NOTHING = Activations(none=Saved(), attention=Saved(), selective=Saved(), full=Saved())


def block(name: str, repeat: int, flops: float, *groups: Parameters, unit: bool = True) -> Block:
    matmul = Operator(kind=OperatorKind.MATMUL, flops=flops, bytes=0)
    return Block(
        name=name,
        repeat=repeat,
        parameters=groups,
        operators=(matmul,),
        activations=NOTHING,
        working=Saved(),
        boundary_bytes=0,
        unit=unit,
    )


def chain(*blocks: Block) -> ModelSpec:
    return ModelSpec(
        ref="chain",
        name="chain",
        family=Family.DECODER,
        blocks=blocks,
        parameters=0,
        active_parameters=0,
        sequence_length=1,
        precision=Precision.FP32,
        causal=True,
        layers=sum(item.repeat for item in blocks),
    )


def decoder(layers: int, head_flops: float, *, tied: bool = False) -> ModelSpec:
    group = "embedding" if tied else None
    table = Parameters(trainable=100, split=Split.TENSOR, tie_group=group)
    return chain(
        block("embedding", 1, 0, table, unit=False),
        block("layer", layers, 1.0, Parameters(trainable=10, split=Split.TENSOR), Parameters(trainable=1)),
        block("head", 1, head_flops, table, unit=False),
    )
