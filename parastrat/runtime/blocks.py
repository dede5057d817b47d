"""The repeated blocks of a module never seen before, found by its structure.

Transformers repeat one layer, CNNs repeat residual blocks in stages. FSDP2 gathers one block at a time,
recompute and compile work per block, and a plan's fingerprint counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

#: stacks with less than this share of the largest stack's parameters stay outside (heads, adapters)
LEAST_SHARE = 0.05

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Repeated blocks in the order of ``named_modules``."""

    #: names of the modules that hold the blocks, such as ``model.layers``
    containers: tuple[str, ...]
    #: names of the blocks, such as ``model.layers.0``
    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]

    @property
    def count(self) -> int:
        return len(self.modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """The blocks in one container."""

    container: str
    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]

    @property
    def parameters(self) -> int:
        return sum(parameter_count(module) for module in self.modules)

    @property
    def kind(self) -> frozenset[type[nn.Module]]:
        return frozenset(type(module) for module in self.modules)

    @property
    def composite(self) -> bool:
        """The blocks have parts of their own; a row of single layers is a poor stack."""
        return any(_is_composite(module) for module in self.modules)


def repeated_blocks(module: nn.Module) -> Blocks:
    """Return the repeated blocks of ``module``; none if nothing repeats.

    A stack is a ModuleList, ModuleDict or Sequential with children of a class that repeats: two children
    of one container share that class and all parameter shapes. Only outermost stacks count. Experts and
    what is in them are never blocks, even where no layer repeats. Several stacks count (encoder and
    decoder, the stages of a CNN) unless they are small. Hugging Face's ``_no_split_modules`` decides where
    it names a repeated class. Rows of single layers (a plain MLP) count only where nothing else repeats.
    """
    return _blocks_of(module, _without_small(_composite(_hinted_first(module, _repeated_classes(module)))))


def stacked_blocks(module: nn.Module) -> Blocks:
    """Return the blocks of all stacks: of small ones, and of those where no two are alike, too.

    A forward may be cut between any of them. Batches may call the small stacks only: those of text, in a
    model that takes images too.
    """
    repeated = _composite(_hinted_first(module, _repeated_classes(module)))
    return _blocks_of(module, repeated + _stacks(module, _is_composite, repeated, least=2))


def called_units(blocks: Blocks) -> dict[str, nn.Module]:
    """Return the blocks by name; of those that nothing calls, such as lists in a dict, their parts.

    FSDP2, recompute and compile act on calls; what has no forward has none. Lists of experts are left out.
    """
    waiting = list(zip(blocks.names, blocks.modules, strict=True))[::-1]
    found = {}
    while waiting:
        name, part = waiting.pop()
        if getattr(part.forward, "__func__", None) is nn.Module.forward:
            if not holds_experts(name, part):
                waiting += [(f"{name}.{key}", child) for key, child in part.named_children()][::-1]
        else:
            found[name] = part
    return found


def _hinted_first(module: nn.Module, classes: frozenset[type[nn.Module]]) -> list[_Stack]:
    """Return the stacks of these classes; those of classes that the module names go before others."""
    named = {cls for cls in classes if cls.__name__ in _hints(module)}
    hinted = _stacks(module, lambda child: type(child) in named)
    return hinted + _stacks(module, lambda child: type(child) in classes, hinted)


def _composite(stacks: list[_Stack]) -> list[_Stack]:
    return [stack for stack in stacks if stack.composite] or stacks


def _blocks_of(module: nn.Module, stacks: list[_Stack]) -> Blocks:
    found = {
        name: (part, stack.container)
        for stack in stacks
        for name, part in zip(stack.names, stack.modules, strict=True)
    }
    names = tuple(name for name, _ in module.named_modules() if name in found)
    return Blocks(
        containers=tuple(dict.fromkeys(found[name][1] for name in names)),
        names=names,
        modules=tuple(found[name][0] for name in names),
    )


def sparse_table(module: nn.Module) -> str | None:
    """Return the name of the first table whose gradients are sparse; None where there is none."""
    tables = (
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    )
    return next(tables, None)


def parameter_count(module: nn.Module) -> int:
    """Return the number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def buffer_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's buffers; what several are views of counts once."""
    storages = (buffer.untyped_storage() for buffer in module.buffers())
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())  # noqa: SLF001


def _hints(module: nn.Module) -> frozenset[str]:
    return frozenset(getattr(module, "_no_split_modules", None) or ())


def _shapes(module: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def _repeated_classes(module: nn.Module) -> frozenset[type[nn.Module]]:
    """Return the classes that occur twice in one container with the same parameters."""
    repeated: set[type[nn.Module]] = set()
    for container in module.modules():
        if isinstance(container, _CONTAINERS):
            kinds = Counter((type(child), _shapes(child)) for child in container.children())
            repeated |= {cls for (cls, shapes), count in kinds.items() if count > 1 and shapes}
    return frozenset(repeated - set(_CONTAINERS))


def _stacks(
    module: nn.Module,
    is_block: Callable[[nn.Module], bool],
    known: Sequence[_Stack] = (),
    *,
    least: int = 1,
) -> list[_Stack]:
    """Return the outermost containers of so many such blocks, but for those around known ones or inside."""
    stacks: list[_Stack] = []
    routed: list[str] = []
    for path, container in module.named_modules():
        if not isinstance(container, _CONTAINERS):
            continue
        if any(_overlap(path, stack.container) for stack in known):
            continue
        if holds_experts(path, container):
            routed.append(path)
        taken = [*routed, *(name for stack in stacks for name in stack.names)]
        if any(path.startswith(f"{name}.") or path == name for name in taken):
            continue
        if sum(map(is_block, container.children())) < least:
            continue
        members = {
            f"{path}.{key}" if path else key: child
            for key, child in container.named_children()
            # a list holds layers of several kinds (hybrids); a Sequential also embeddings and heads
            if is_block(child) or (_is_list(container) and _is_composite(child))
        }
        stacks.append(_Stack(container=path, names=tuple(members), modules=tuple(members.values())))
    return stacks


def has_routed_parts(module: nn.Module) -> bool:
    """Return whether tokens choose which of a model's weights work, so that some may see none of a batch.

    Those are lists of experts, or stacks of all experts' weights: beside experts without weights, as
    LongCat-Flash has them, no token of a batch may choose any.
    """
    stacked = (
        any(True for _ in part.parameters(recurse=False)) and holds_experts(path, part)
        for path, part in module.named_modules()
    )
    return has_lists_of_experts(module) or any(stacked)


def has_lists_of_experts(module: nn.Module) -> bool:
    """Return whether experts are modules of their own, of which some see no token of a small batch."""
    return any(
        isinstance(container, _CONTAINERS) and len(container) > 1 and holds_experts(path, container)
        for path, container in module.named_modules()
    )


def holds_experts(path: str, container: nn.Module) -> bool:
    """Return whether tokens choose which of a container's modules run.

    Ranks with other tokens run others: gathered one by one, they would wait for each other for ever.
    """
    return "experts" in f"{path.rpartition('.')[2]} {type(container).__name__}".lower()


def _is_list(container: nn.Module) -> bool:
    return not isinstance(container, nn.Sequential)


def _is_composite(module: nn.Module) -> bool:
    """Return whether the module has parts of its own and parameters."""
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _overlap(path: str, other: str) -> bool:
    """Return whether one of two module names is inside the other, or they are equal."""
    first, second = f"{path}." if path else "", f"{other}." if other else ""
    return first.startswith(second) or second.startswith(first)


def _without_small(stacks: list[_Stack]) -> list[_Stack]:
    """Drop kinds of blocks with few parameters; the stages of a CNN are one kind."""
    totals: Counter[frozenset[type[nn.Module]]] = Counter()
    for stack in stacks:
        totals[stack.kind] += stack.parameters
    least = LEAST_SHARE * max(totals.values(), default=0)
    return [stack for stack in stacks if totals[stack.kind] >= least]
