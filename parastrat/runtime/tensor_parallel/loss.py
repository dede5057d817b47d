"""The proof that a model's logits may stay divided up to their cross entropy."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.runtime.building import described
from parastrat.runtime.in_step import first_said
from parastrat.runtime.logits import cross_entropies_computed, logits_divided
from parastrat.runtime.tensor_parallel.computed import Results, Task, results
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import Layout, heads
from parastrat.runtime.tensor_parallel.proof import Verdict, proven
from parastrat.runtime.tensor_parallel.styles import feature_dims
from parastrat.runtime.tensors.batches import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh


def unproven_loss(plain: nn.Module, inputs: Any, layout: Layout, mesh: DeviceMesh) -> str:
    """Return why logits have to be gathered before the loss; nothing if divided ones give the same.

    All ranks call it. Compared is the model's own loss where it takes labels, else the cross entropy of
    its output; and only what is computed from divided logits counts.

    Args:
        plain: a small copy of the model.
        inputs: its batch.
        layout: of the copy, with logits gathered.
        mesh: the tensor-parallel ranks.
    """
    found = heads(layout, Extent.of(plain).names)
    if not found:
        return "no head is divided by its vocabulary"
    task = task_of_loss(plain, inputs, found[0])

    def verdict(expected: Results) -> Verdict:
        return proven(plain, expected, task, replace(layout, loss=True), mesh)

    return unproven(plain, task, mesh, verdict)


def task_of_loss(module: nn.Module, inputs: Any, head: str) -> Task:
    """Return the task of a model's own loss where it takes labels, else of the cross entropy of its output.

    Args:
        module: a small copy of the model.
        inputs: its batch.
        head: the name of the layer whose outputs are its logits.
    """
    return _with_labels(module, inputs) or Task(inputs=inputs, classes=_classes(module, head))


def unproven(plain: nn.Module, task: Task, mesh: DeviceMesh, verdict: Callable[[Results], Verdict]) -> str:
    """Return why logits have to be gathered before the loss; nothing if divided ones give the same.

    Args:
        plain: a small copy of the model.
        task: of its loss.
        mesh: the ranks that divide the logits; all call it.
        verdict: on a copy that leaves them divided, beside what the plain one gave.
    """
    untried = ""
    try:
        expected = results(copy.deepcopy(plain), task)
    except Exception as error:  # noqa: BLE001  (the module's code may raise anything; the reason quotes it)
        untried = f"its loss cannot be tried: {described(error)}"
    untried = first_said(untried, mesh)
    if untried:
        return untried
    before = cross_entropies_computed()
    with logits_divided():
        found = verdict(expected)
    if not found:
        return f"not proven: {found}"
    if cross_entropies_computed() == before:
        return "the model's own code needs them whole"
    return ""


def _classes(module: nn.Module, head: str) -> int:
    layer: Any = module.get_submodule(head)
    dims = feature_dims(layer)
    return 0 if dims is None else int(layer.weight.shape[dims[0]])


def _with_labels(module: nn.Module, inputs: Any) -> Task | None:
    """Return the task of the model's own loss; None if it computes none."""
    if not isinstance(inputs, dict) or "labels" not in inspect.signature(module.forward).parameters:
        return None
    ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    if "labels" in inputs:
        return Task(inputs=inputs)
    if ids is None:
        return None
    labels = ids.clone()
    labels[:, ::3] = IGNORED
    return Task(inputs={**inputs, "labels": labels})
