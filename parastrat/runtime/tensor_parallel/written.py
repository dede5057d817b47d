"""A proven layout as torch's own styles can say it, where they can."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parastrat.emit.division import Division, Place, Reading, Style
from parastrat.runtime.blocks import Blocks, has_routed_parts, repeated_blocks
from parastrat.runtime.building import class_name
from parastrat.runtime.tensor_parallel.dropout import drops
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import Group, Inside, Layout, Part, Role, heads
from parastrat.runtime.tensor_parallel.sequence import in_stream, own_home
from parastrat.runtime.tensor_parallel.settle import tied
from parastrat.runtime.tensors.batches import called

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.utils.hooks import RemovableHandle


class NotWrittenError(Exception):
    """Torch's own styles do not say this layout; the message is the reason."""


#: what no style of torch's says
_UNSAID = {
    Role.LATENT: "is read, or reads, for shares of the heads",
    Role.BESIDE: "has parameters beside its layers",
    Role.NORM: "normalises the features of all ranks together",
    Role.ROW_OF_WHOLE: "takes its share of a whole input",
}
#: by role, and whether positions are divided there
_STYLES = {
    (Role.COLUMN, False): Style.COLUMN,
    (Role.COLUMN, True): Style.COLUMN_OF_SHARE,
    (Role.COLUMN_GATHERED, False): Style.HEAD,
    (Role.COLUMN_GATHERED, True): Style.HEAD_OF_SHARE,
    (Role.ROW, False): Style.ROW,
    (Role.ROW, True): Style.ROW_TO_SHARE,
    (Role.EMBEDDING, False): Style.EMBEDDING,
    (Role.EMBEDDING, True): Style.EMBEDDING_TO_SHARE,
    (Role.SUMMED, True): Style.WHOLE_OF_SHARE,
}


@dataclass(slots=True)
class _Draft:
    """Styles by module name."""

    module: nn.Module
    layout: Layout
    blocks: Blocks
    readings: Mapping[str, Reading | None]
    styles: dict[str, tuple[Style, Reading]] = field(default_factory=dict)

    def note(self, name: str, style: Style, reading: Reading | None = None) -> None:
        if name in self.styles:
            raise NotWrittenError(f"{name} would need two styles")
        self.styles[name] = (style, reading or Reading())

    def reading(self, name: str) -> Reading:
        """Return how a module is given its activation; blocks that were not kept are given it alike."""
        reading = self.readings.get(self.pattern(name))
        if reading is None:
            raise NotWrittenError(f"{name} reads several activations, or none first")
        return reading

    def is_plain(self, name: str) -> bool:
        """Return whether a module makes one tensor of one activation."""
        reading = self.readings.get(self.pattern(name))
        return reading is not None and reading.gives_one

    def pattern(self, name: str) -> str:
        """Return a name with ``*`` for the number of its block."""
        if not self.blocks.containers:
            return name
        start = f"{self.blocks.containers[0]}."
        rest = name.removeprefix(start)
        if not name.startswith(start) or "." not in rest:
            return name
        return f"{start}*.{rest.partition('.')[2]}"


def readings(module: nn.Module, inputs: Any) -> dict[str, Reading | None]:
    """Return how each kind of module of a small copy is given its activation, from one forward.

    None where it is given several, or another one first. An activation has three dimensions.
    """
    draft = _Draft(module, Layout(groups=()), repeated_blocks(module), {})
    found: dict[str, Reading | None] = {}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        places = [index for index, value in enumerate(args) if _activation(value)]
        names = [key for key, value in kwargs.items() if _activation(value)]
        if places == [0] and not names:
            found[name] = Reading(positional=len(args))
        else:
            found[name] = Reading(keyword=names[0]) if len(names) == 1 and not places else None

    def given(name: str) -> RemovableHandle:
        pattern = draft.pattern(name)
        hook = module.get_submodule(name).register_forward_pre_hook
        return hook(lambda _part, args, kwargs: note(pattern, args, kwargs), with_kwargs=True)

    def returned(name: str, output: Any) -> None:
        reading = found[name]
        if reading is not None:
            found[name] = replace(reading, gives_one=isinstance(output, torch.Tensor))

    def gives(name: str) -> RemovableHandle:
        pattern = draft.pattern(name)
        hook = module.get_submodule(name).register_forward_hook
        return hook(lambda _part, _args, output: returned(pattern, output))

    handles = [watch(name) for name, _ in module.named_modules() for watch in (given, gives)]
    with torch.no_grad():
        called(module, inputs)
    for handle in handles:
        handle.remove()
    return found


def _activation(value: Any) -> bool:
    # angles come as a tuple, masks have four dimensions
    return isinstance(value, torch.Tensor) and value.ndim == 3 and value.is_floating_point()


def written(module: nn.Module, layout: Layout, given: Mapping[str, Reading | None]) -> Division:
    """Return the layout in torch's styles.

    Args:
        module: the whole model, or its small copy.
        layout: of it.
        given: what ``readings`` returned.

    Raises:
        NotWrittenError: if they do not say it, with the reason.
    """
    blocks = repeated_blocks(module)
    if len(blocks.containers) != 1 or blocks.count < 2:
        raise NotWrittenError(f"the model has {len(blocks.containers)} lists of several blocks, not one")
    draft = _Draft(module, layout, blocks, given)
    _check(module)
    for group in layout.groups:
        _note_group(draft, group)
    if layout.sequence and not layout.ends.embedding:
        draft.note(blocks.names[0], Style.FIRST_OF_SHARE, draft.reading(blocks.names[0]))
    if layout.sequence and not layout.ends.head:
        draft.note(blocks.names[-1], Style.LAST_OF_SHARE)
    _note_rest(draft)
    ties = [tuple(dict.fromkeys(path for path, _ in owners)) for owners in tied(module)]
    return Division(
        container=blocks.containers[0],
        blocks=blocks.count,
        places=_places(draft),
        tied=tuple(ties),
        model=class_name(module),
        routed=has_routed_parts(module),
    )


def _check(module: nn.Module) -> None:
    if drops(module):
        raise NotWrittenError("dropout has to be alike on all tp ranks, but in divided regions")
    frozen = next((name for name, p in module.named_parameters() if not p.requires_grad), "")
    if frozen:
        raise NotWrittenError(f"{frozen} is frozen, and torch's styles thaw some parameters")
    for owners in tied(module):
        if any(name != "weight" for _, name in owners):
            raise NotWrittenError(f"{'.'.join(owners[0])} is shared, and is no weight of a layer")


def _note_group(draft: _Draft, group: Group) -> None:
    if group.given:
        raise NotWrittenError(f"what {', '.join(group.given)} may be given is checked in every forward")
    if group.inside is not Inside.LOCAL:
        raise NotWrittenError(f"between {group.kind} the model's own code counts {_counted(group)}")
    extent = Extent.of(draft.module)
    shared = draft.layout.sequence and in_stream(extent, group, draft.layout.ends)
    columns = [name for name, part in group.parts.items() if part.role is Role.COLUMN]
    if len(columns) > 1:
        home = own_home(group, draft.blocks.names)
        if not home:
            raise NotWrittenError(
                f"no module of their own holds {', '.join(columns)}, which read one tensor"
            )
        style = Style.READER_OF_SHARE if shared else Style.READER
        draft.note(home, style, draft.reading(home))
    for name, part in group.parts.items():
        draft.note(name, _style(draft, name, part, shared=shared, alone=len(columns) < 2, group=group))


def _counted(group: Group) -> str:
    return "whole heads or features" if group.inside is Inside.DTENSORS else "heads in its attributes"


def _style(draft: _Draft, name: str, part: Part, *, shared: bool, alone: bool, group: Group) -> Style:
    target: Any = draft.module.get_submodule(name)
    if part.copied:
        raise NotWrittenError(f"{name} has {part.copied} heads, each of which several ranks compute")
    if part.segments:
        raise NotWrittenError(f"{name} is fused of {len(part.segments)} layers that are divided one by one")
    linear = part.role in {Role.COLUMN, Role.COLUMN_GATHERED, Role.ROW, Role.ROW_OF_WHOLE}
    if linear and not isinstance(target, nn.Linear):
        raise NotWrittenError(f"{name} is a {type(target).__name__}, which torch's styles do not divide")
    if part.role in _UNSAID or part.inner:
        raise NotWrittenError(f"{name} {_UNSAID.get(part.role, _UNSAID[Role.LATENT])}")
    if part.role is Role.EMBEDDING and getattr(target, "padding_idx", None) is not None:
        raise NotWrittenError(f"{name} has a padding index, which torch takes for one of each rank's rows")
    if part.role is Role.SUMMED and group.rows:
        return Style.WHOLE_OF_HEADS
    if part.role is Role.SUMMED and not draft.is_plain(name):
        return Style.WHOLE_INSIDE_OF_SHARE
    if draft.layout.loss and name in heads(draft.layout, draft.blocks.names):
        return Style.HEAD_DIVIDED
    return _STYLES[part.role, shared and (part.role is not Role.COLUMN or alone)]


def _note_rest(draft: _Draft) -> None:
    """Give all other modules with weights of their own the style of what is whole."""
    for name, part in draft.module.named_modules():
        own = next(iter(part.named_parameters(recurse=False)), None)
        if own is None or name in draft.layout.parts:
            continue
        # code that reads plain weights may call parts without any, such as an activation function
        kept = [child for child in part.children() if draft.is_plain(name) or [*child.parameters()]]
        if not name or kept or [*part.buffers(recurse=False)]:
            raise NotWrittenError(f"{f'{name}.{own[0]}'.lstrip('.')} stands beside layers")
        draft.note(name, Style.WHOLE if draft.is_plain(name) else Style.WHOLE_INSIDE)


def _places(draft: _Draft) -> tuple[Place, ...]:
    found: dict[str, tuple[Style, Reading]] = {}
    counts: Counter[str] = Counter()
    for name, _ in draft.module.named_modules():
        if name not in draft.styles:
            continue
        pattern = draft.pattern(name)
        if found.setdefault(pattern, draft.styles[name]) != draft.styles[name]:
            raise NotWrittenError(f"{name} is divided in another way than in other blocks")
        counts[pattern] += 1
    for pattern, count in counts.items():
        if "*" in pattern and count < draft.blocks.count:
            raise NotWrittenError(f"{pattern} is not in all blocks")
    return tuple(Place(name=name, style=held[0], reading=held[1]) for name, held in found.items())
