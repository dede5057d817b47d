"""How many targets the mean loss of a micro-batch divides by."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from parastrat.errors import UsageError
from parastrat.runtime.tensors.batches import IGNORED, batch_size, target_count

#: keywords by which forwards take the targets of their own loss
_KEYWORDS = ("labels", "targets", "target", "label")
#: what forwards that compute a loss call
_LOSSES = ("cross_entropy", "chunked_cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss")
#: losses whose mean is over the weights of classes, where there are any
_WEIGHING = (
    nn.CrossEntropyLoss,
    nn.NLLLoss,
    nn.functional.cross_entropy,
    nn.functional.nll_loss,
)
#: methods that may make a mean of a sum
_SCALING = frozenset({"mean", "div", "div_", "divide", "true_divide", "mul", "mul_", "multiply"})
#: ends of class names and loss types of models that predict the next token
_PREDICTING = ("ForCausalLM", "LMHeadModel")


def counted(module: nn.Module, inputs: Any, targets: Any, ignored: int | None) -> int:
    """Return how many targets the mean loss of a micro-batch divides by.

    Args:
        module: as it was before it was wrapped.
        inputs: what its forward takes; without ``targets``, with those of its own loss by keyword.
        targets: what a loss function takes; None: the model computes its loss.
        ignored: class index that the loss function leaves out; None: torch's.
    """
    if targets is not None:
        return target_count(targets, IGNORED if ignored is None else ignored)
    given = inputs if isinstance(inputs, dict) else {}
    labels = next((given[key] for key in _KEYWORDS if isinstance(given.get(key), torch.Tensor)), None)
    if labels is None:
        return batch_size(inputs)
    return target_count(labels[:, 1:] if labels.ndim > 1 and predicts_next(module) else labels)


def setting_of(loss_fn: Any, name: str) -> Any:
    """Return what a loss function was made with: its attribute, or a keyword of ``functools.partial``."""
    if isinstance(loss_fn, partial) and name in loss_fn.keywords:
        return loss_fn.keywords[name]
    return getattr(loss_fn, name, None)


def check_mean(loss_fn: Any, parts: int) -> None:
    """Refuse a loss that is no mean over its targets, of a batch that is cut in so many parts.

    Raises:
        UsageError: it reduces in another way, or divides by the weights of its targets' classes.
    """
    reduction = setting_of(loss_fn, "reduction") or ("sum" if _adds_up(loss_fn) else "mean")
    if reduction != "mean":
        raise UsageError(
            f"loss_fn reduces by {reduction!r}; micro-batches need a mean", hint='use reduction="mean"'
        )
    function = loss_fn.func if isinstance(loss_fn, partial) else type(loss_fn)
    if parts > 1 and function in _WEIGHING and setting_of(loss_fn, "weight") is not None:
        raise UsageError(
            "loss_fn weighs classes: it divides by the weights of a micro-batch's targets, and the mean "
            "over micro-batches and ranks would be another",
            hint="weigh the losses of reduction='none' yourself, and return their mean",
        )


def _adds_up(loss_fn: Any) -> bool:
    """Return whether a function asks one of torch's for a sum, and neither scales nor passes it on."""
    code = getattr(loss_fn, "__code__", None)
    if code is None or "sum" not in code.co_consts or not _SCALING.isdisjoint(code.co_names):
        return False
    steps = list(dis.get_instructions(code))
    scales = any(step.opname == "BINARY_OP" and step.argrepr.strip("=") in {"/", "*"} for step in steps)
    # as CALL_KW takes them since Python 3.13, and KW_NAMES before; the call is the next one
    asks = [place for place, step in enumerate(steps) if "reduction" in _names(step, code.co_consts)]
    if scales or not asks:
        return False
    behind = [step.opname for step in steps[asks[-1] :] if step.opname.startswith("CALL")]
    return len(behind) == 1


def _names(step: dis.Instruction, constants: tuple[Any, ...]) -> tuple[Any, ...]:
    value = constants[step.arg or 0] if step.opname == "KW_NAMES" else step.argval
    return value if isinstance(value, tuple) else ()


def predicts_next(module: nn.Module) -> bool:
    """Return whether a model that computes its loss shifts its labels, so that the first is no target.

    Read from the source of its class, where that computes a loss; else told by the names that Hugging Face
    gives such models.
    """
    kind: Any = type(module)
    sliced, computes = _read(kind)
    if sliced or computes:
        return sliced
    names = (str(getattr(module, "loss_type", "")), *(kind.__name__ for kind in type(module).__mro__))
    return any(name.endswith(_PREDICTING) for name in names)


@cache
def _read(kind: Any) -> tuple[bool, bool]:
    """Return whether the source of a class drops the first labels, and whether it computes a loss."""
    sliced = computes = False
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] in {"builtins", "torch", "transformers"}:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        except (OSError, TypeError, SyntaxError):  # made at run time
            continue
        nodes = list(ast.walk(tree))
        sliced = sliced or any(isinstance(node, ast.Subscript) and _drops_first(node) for node in nodes)
        computes = computes or any(_name(node) in _LOSSES for node in nodes)
    return sliced, computes


def _drops_first(node: ast.Subscript) -> bool:
    """Return whether this is ``labels[..., 1:]``, by whatever name of a target."""
    index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    last = index[-1]
    begins = isinstance(last, ast.Slice) and isinstance(last.lower, ast.Constant) and last.lower.value == 1
    return begins and len(index) > 1 and any(word in _name(node.value) for word in ("label", "target"))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
