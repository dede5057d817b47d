"""The functions by which modules give their weights first values, found and called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.tensors.slots import Slot


def reset(modules: Sequence[nn.Module]) -> None:
    """Call ``reset_parameters`` as far as it exists."""
    for part in modules:
        own = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(own) and _required(own) == 0:
            own()


def run_initialisers(root: nn.Module, modules: Sequence[nn.Module], slots: Sequence[Slot]) -> None:
    """Call ``init_weights``, then ``_init_weights``, as far as they exist.

    Others' tensors are on the meta device now, so that initialisers of the whole model, and of modules
    around a block, do no harm when they run once per block.

    Args:
        root: the model.
        modules: what is initialised, and what has it inside.
        slots: what has memory.

    Raises:
        WrapError: one reads what has no memory now.
    """
    for whole in _outermost(root):
        whole.init_weights()  # type: ignore[operator]  # _outermost saw that it is callable
    concerned = set(map(id, modules))
    with _tied_later(root, slots):
        for part, setter in _setters(root, None):
            if id(part) in concerned:
                _call(setter, part)


def _call(setter: Callable[[nn.Module], object], part: nn.Module) -> None:
    try:
        setter(part)
    except NotImplementedError as error:
        if "meta" not in str(error):
            raise
        raise WrapError(
            f"{type(part).__name__} sets weights of one block from those of another, and first values are "
            "made block by block",
            hint="pass the built module instead of the callable, or checkpoint=",
        ) from error


@contextmanager
def _tied_later(root: nn.Module, slots: Sequence[Slot]) -> Iterator[None]:
    """Let other tensors stand in a weight's other places, where a model ties behind its initialisers.

    That is the way of transformers: what they say of a head that is tied to the embedding goes nowhere.
    """
    if not callable(getattr(root, "tie_weights", None)):
        yield
        return
    tied = [slot for slot in slots if slot.is_parameter and len(slot.owners) > 1]
    sources = set((getattr(root, "all_tied_weights_keys", None) or {}).values())
    kept = []
    for slot in tied:
        place = next((place for place, name in enumerate(slot.names) if name in sources), 0)
        kept.append(slot.owners[place])
        for owner, key in slot.owners:
            if (owner, key) != slot.owners[place]:
                setattr(owner, key, slot.standing_for(torch.empty_like(slot.current())))
    try:
        yield
    finally:
        for slot, (owner, key) in zip(tied, kept, strict=True):
            slot.put(getattr(owner, key))


def _outermost(module: nn.Module) -> list[nn.Module]:
    """Return the highest modules whose ``init_weights()`` sets all below; Hugging Face's is no such."""
    own = getattr(module, "init_weights", None)
    if callable(own) and _required(own) == 0 and not _sets_modules(module):
        return [module]
    return [found for child in module.children() for found in _outermost(child)]


def _setters(
    module: nn.Module, inherited: Callable[[nn.Module], object] | None
) -> list[tuple[nn.Module, Callable[[nn.Module], object]]]:
    """Pair every module, children first, with the nearest ``_init_weights(module)`` above it."""
    setter = module._init_weights if _sets_modules(module) else inherited  # noqa: SLF001  (a convention)
    pairs = [pair for child in module.children() for pair in _setters(child, setter)]  # type: ignore[arg-type]
    return [*pairs, (module, setter)] if setter is not None else pairs  # type: ignore[list-item]


def _sets_modules(module: nn.Module) -> bool:
    setter = getattr(module, "_init_weights", None)
    return callable(setter) and _required(setter) == 1


def _required(function: Callable[..., object]) -> int:
    """Return how many positional arguments a call must give."""
    parameters = inspect.signature(function).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is inspect.Parameter.empty and p.kind in positional for p in parameters)
