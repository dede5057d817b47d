"""How much memory an optimizer moves for each parameter that it updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.ranks.states import element_bytes
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from parastrat.case import Facts

#: tensors that torch's optimizers read or write operation by operation, over those that one kernel has to:
#: the gradient, and weight and states twice. AdamW (torch/optim/adam.py) scales the weight (2),
#: interpolates the first state (3), scales the second (2) and adds to it (3), takes its root (2), divides
#: (2) and adds to that (2), and updates the weight (4). Muon (torch/optim/_muon.py) interpolates momentum
#: and update (6), casts and scales that in bf16 (3), and scales and updates the weight (4.5). SGD scales
#: the momentum (2), adds to it (3), and updates the weight (3)
BY_OPERATION = {
    Optimizer.ADAMW: 20 / 7,
    Optimizer.MUON: 13.5 / 5,
    Optimizer.SGD_MOMENTUM: 8 / 5,
}


def update_bytes(facts: Facts) -> tuple[float, float]:
    """Return what an update of one parameter reads and writes, and what less of one in Muon's matrices.

    AdamW is taken to be torch's with ``fused=True``, as trainers have it (torchtitan, Megatron, DeepSpeed,
    Transformers 5); what is planned for memory leaves room for one that is not.
    """
    element, stack, optimizer = element_bytes(facts), facts.stack, facts.workload.optimizer
    fused = optimizer is Optimizer.ADAMW and not stack.steps_by_operation
    passes = 1.0 if fused or stack.steps_in_one_kernel else BY_OPERATION.get(optimizer, 1.0)
    moved = element.gradient + 2 * (element.parameter + element.optimizer)
    return moved * passes, 2 * element.spared * passes
