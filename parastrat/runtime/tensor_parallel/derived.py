"""A layout for any module: pairs of column and row layers, found by following the data between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.fx import Node

from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensor_parallel.calls import Call, shape_of, short_name
from parastrat.runtime.tensor_parallel.counting import counts_of
from parastrat.runtime.tensor_parallel.graph import Graph, exported
from parastrat.runtime.tensor_parallel.layout import Given, Group, Layout, Left, Part, Role, kind_of
from parastrat.runtime.tensor_parallel.norms import TOGETHER, may_normalise
from parastrat.runtime.tensor_parallel.operators import followed
from parastrat.runtime.tensor_parallel.same_way import ways_of
from parastrat.runtime.tensor_parallel.styles import embedding_rows, feature_dims
from parastrat.runtime.tensor_parallel.tags import NotFollowedError, SegmentsNeededError, Tag


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What is known of the layers after following all data once."""

    #: layers whose output cannot be divided
    dead: dict[str, str] = field(default_factory=dict)
    #: shares of the stretches of fused outputs
    shares: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: sets of columns that are only right together, with the row they end in, if they do
    ends: list[tuple[frozenset[str], str | None]] = field(default_factory=list)
    #: parameters inside, with the columns around them
    inside: list[tuple[frozenset[str], str]] = field(default_factory=list)
    #: norms over all features inside, with the columns around them
    norms: list[tuple[frozenset[str], str]] = field(default_factory=list)
    #: modules that are known to be such norms
    together: dict[str, None] = field(default_factory=dict)
    #: sizes of the divided dimension on its way
    sizes: list[tuple[frozenset[str], int]] = field(default_factory=list)
    #: by column: kinds of modules in whose calls its way is always the same, and the flags they are given
    alike: Mapping[str, frozenset[tuple[str, Given]]] = field(default_factory=dict)


class _StuckError(Exception):
    """Following must begin anew: some layer cannot be a column, or in other stretches."""


def derived_layout(module: nn.Module, inputs: Any, degree: int) -> Layout:
    """Return the groups that the module's own data flow suggests; ``module`` is small and real.

    Raises:
        NotFollowedError: if torch.export does not take the module.
    """
    graph = exported(module, inputs)
    joining = {graph.home_of(node) for node in graph.nodes if short_name(node) in TOGETHER}
    norms = {name for name, part in module.named_modules() if name in joining and may_normalise(part)}
    attempt = Attempt()
    while True:
        try:
            _follow(graph, attempt, degree, norms)
        except _StuckError:
            attempt = Attempt(dead=attempt.dead, shares=attempt.shares, together=attempt.together)
            continue
        return _layout(module, attempt)


def _follow(graph: Graph, attempt: Attempt, degree: int, norms: Collection[str]) -> None:
    tags: dict[Node, Tag] = {}
    for node in graph.nodes:
        held = {source: tags[source] for source in node.all_input_nodes if source in tags}
        try:
            tag = _next(graph, node, held, attempt, degree)
        except NotFollowedError as error:
            sources = sorted(_sources(held))  # alike on all ranks, whose sets have other orders
            if not sources:
                raise
            home = graph.home_of(node)
            if home in norms and home not in attempt.together:
                attempt.together[home] = None
                raise _StuckError from error
            attempt.dead |= dict.fromkeys(sources, str(error))
            raise _StuckError from error
        except SegmentsNeededError as error:
            for source in sorted(_sources(held)):
                if source in attempt.shares:
                    attempt.dead[source] = "its fused output is taken apart twice"
                attempt.shares[source] = error.shares
            raise _StuckError from error
        if tag is not None:
            tags[node] = tag
            attempt.ends.append((tag.sources, None))
            attempt.sizes.append((tag.sources, shape_of(node)[tag.dim]))
    columns = {node for node, tag in tags.items() if graph.layers.get(node) in tag.sources}
    ways = ways_of(graph, columns, tags.keys())
    if ways.elsewhere:
        attempt.dead |= ways.elsewhere
        raise _StuckError
    attempt.alike = ways.alike


def _sources(tags: Mapping[Node, Tag]) -> frozenset[str]:
    return frozenset().union(*(tag.sources for tag in tags.values()))


def _next(graph: Graph, node: Node, held: dict[Node, Tag], attempt: Attempt, degree: int) -> Tag | None:
    path = graph.layers.get(node)
    if path is not None:
        return _through_layer(graph, node, path, held, attempt)
    if not held:
        return None
    if node.op == "output":
        raise NotFollowedError("its output is the model's")
    if str(node.target).startswith("aten._assert"):
        return None
    if "getitem" in str(node.target):
        return next(iter(held.values()))
    if graph.home_of(node) in attempt.together:
        return _through_norm(graph, node, held, attempt)
    return _through_operator(graph, node, held, attempt, degree)


def _through_operator(
    graph: Graph, node: Node, held: dict[Node, Tag], attempt: Attempt, degree: int
) -> Tag:
    """An operator passes on what is divided, beside what is whole on all ranks."""
    sources = _sources(held)
    own = {
        each
        for each in node.all_input_nodes
        if {name.rpartition(".")[0] for name in graph.parameters.get(each, ("",))} <= sources
    }
    call = Call(node=node, tags=held, degree=degree, own=frozenset(own))
    tag = followed(call)
    for operand in call.operands:
        if operand in own:
            continue
        if operand in graph.parameters:
            attempt.inside += [(tag.sources, name) for name in graph.parameters[operand]]
        elif operand in graph.trained and operand not in held:
            raise NotFollowedError("it meets a whole activation, whose gradient would be a share")
    return tag


def _through_layer(
    graph: Graph, node: Node, path: str, held: dict[Node, Tag], attempt: Attempt
) -> Tag | None:
    """A linear layer divides its output, or takes a divided input, or works inside of what is divided."""
    # what is made of parameters alone, such as a table of positions, is read as an activation is
    x = next((n for n in node.all_input_nodes if n not in graph.parameters), node.all_input_nodes[0])
    last = len(shape_of(node)) - 1
    if x not in held:
        if path in attempt.dead or node.target is None:
            return None
        shares = attempt.shares.get(path, ())
        alike = len(set(shares)) == 1
        return Tag(
            dim=last,
            sources=frozenset({path}),
            outer=len(shares) if alike else 1,
            shares=() if alike else shares,
        )
    tag = held[x]
    if tag.dim != last:
        attempt.inside += [
            (tag.sources, name) for n in node.all_input_nodes for name in graph.parameters.get(n, ())
        ]
        return tag
    if tag.outer > 1 or tag.shares:
        raise NotFollowedError(f"it reaches {path} in another order")
    if tag.normed:  # it would be a column otherwise, as that of queries from a latent
        raise NotFollowedError("its features are normalised together")
    attempt.ends.append((tag.sources, path))
    return None


def _through_norm(graph: Graph, node: Node, held: dict[Node, Tag], attempt: Attempt) -> Tag | None:
    """A norm over all features gives each rank its share of them; what it makes of them all is whole."""
    sources, (first, tag) = _sources(held), next(iter(held.items()))
    features = shape_of(first)[tag.dim]
    if tag.dim != len(shape_of(first)) - 1 or tag.outer > 1 or tag.shares:
        raise NotFollowedError("its features are normalised together")
    attempt.norms.append((sources, graph.home_of(node)))
    shape = shape_of(node)
    if shape[-1:] != (features,):
        return None
    return Tag(dim=len(shape) - 1, sources=sources, normed=True)


def _layout(module: nn.Module, attempt: Attempt) -> Layout:
    """Join what belongs together, and drop what does not end in a row."""
    groups: list[Group] = []
    left: dict[str, Left] = {}
    for columns in _together([sources for sources, _ in attempt.ends]):
        rows = {row for sources, row in attempt.ends if row is not None and sources <= columns}
        inside = {name.rpartition(".")[0] for sources, name in attempt.inside if sources <= columns}
        if not rows:
            continue
        parts = {
            path: Part(role=Role.COLUMN, segments=_segments(module, path, attempt)) for path in columns
        }
        parts |= {path: Part(role=Role.ROW) for path in rows}
        parts |= {path: Part(role=Role.SUMMED) for path in inside}
        parts |= {path: Part(role=Role.NORM) for sources, path in attempt.norms if sources <= columns}
        ordered = {name: parts[name] for name, _ in module.named_modules() if name in parts}
        numbers = frozenset(size for sources, size in attempt.sizes if sources <= columns)
        sizes = counts_of(module, columns | rows, numbers)
        given = _given(attempt, columns)
        groups.append(Group(kind=_kind(list(ordered)), parts=ordered, sizes=sizes, given=given))
    groups += vocabulary_groups(module, {path for group in groups for path in group.parts})
    known = {path for group in groups for path in group.parts}
    for path, reason in attempt.dead.items():
        if path not in known:
            left.setdefault(kind_of(path), Left(kind=kind_of(path), reason=reason))
    return Layout(groups=tuple(groups), left=tuple(left.values()))


def _given(attempt: Attempt, columns: frozenset[str]) -> dict[str, tuple[Given, ...]]:
    """Return what kinds of modules may be given, in one order on all ranks."""
    found: dict[str, set[Given]] = defaultdict(set)
    for path in columns:
        for kind, given in attempt.alike.get(path, ()):
            found[kind].add(given)
    return {kind: tuple(sorted(found[kind])) for kind in sorted(found)}


def _segments(module: nn.Module, path: str, attempt: Attempt) -> tuple[int, ...]:
    layer: Any = module.get_submodule(path)
    dims = feature_dims(layer)
    if dims is None or path not in attempt.shares:
        return ()
    features: int = layer.weight.shape[dims[0]]
    return tuple(round(share * features) for share in attempt.shares[path])


def _together(sets: list[frozenset[str]]) -> list[frozenset[str]]:
    """Return the unions of sets that share a member, in order."""
    found: list[frozenset[str]] = []
    for each in dict.fromkeys(sets):
        overlapping = [other for other in found if other & each]
        found = [other for other in found if not other & each]
        found.append(each.union(*overlapping))
    return found


def vocabulary_groups(module: nn.Module, known: set[str]) -> Iterator[Group]:
    """Divide the largest embedding by rows, and the layers that predict them."""
    # others may look up more than they are given, as OPT's positions with an offset
    plain = nn.Embedding.forward
    embeddings = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and type(part).forward is plain
    }
    if not embeddings:
        return
    stated = getattr(getattr(module, "config", None), "vocab_size", None)
    counts = [embedding_rows(part) for part in embeddings.values()]
    rows = stated if stated in counts else max(counts)
    blocks = tuple(f"{name}." for name in repeated_blocks(module).names)
    for name, part in module.named_modules():
        if name in known or name.startswith(blocks):  # a block's layer may have as many features
            continue
        if name in embeddings and embedding_rows(part) == rows:
            yield Group(kind=kind_of(name), parts={name: Part(role=Role.EMBEDDING)})
        elif isinstance(part, nn.Linear) and part.out_features == rows:
            yield Group(kind=kind_of(name), parts={name: Part(role=Role.COLUMN_GATHERED)})


def _kind(paths: list[str]) -> str:
    """Return the common place and the names in it, such as ``layers.*.mlp.{up,down}``."""
    pieces = [kind_of(path).split(".") for path in paths]
    shared = 0
    while all(len(each) > shared + 1 and each[: shared + 1] == pieces[0][: shared + 1] for each in pieces):
        shared += 1
    names = [".".join(each[shared:]) for each in pieces]
    return ".".join([*pieces[0][:shared], names[0] if len(names) == 1 else "{" + ",".join(names) + "}"])
