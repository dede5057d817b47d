"""A layout for any module: pairs of column and row layers, found by following the data between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import Node

from parastrat.runtime.tensor_parallel.attempt import Attempt, Known
from parastrat.runtime.tensor_parallel.calls import Call, shape_of
from parastrat.runtime.tensor_parallel.counting import counts_of
from parastrat.runtime.tensor_parallel.graph import Graph, exported
from parastrat.runtime.tensor_parallel.latent import origin_of
from parastrat.runtime.tensor_parallel.layout import Given, Group, Layout, Left, Part, Role, kind_of
from parastrat.runtime.tensor_parallel.operators import followed
from parastrat.runtime.tensor_parallel.same_way import ways_of
from parastrat.runtime.tensor_parallel.styles import feature_dims
from parastrat.runtime.tensor_parallel.tags import WHOLE, NotFollowedError, SegmentsNeededError, Tag
from parastrat.runtime.tensor_parallel.vocabulary import vocabulary_groups


class _StuckError(Exception):
    """Following must begin anew: some layer cannot be a column, or in other stretches."""


def derived_layout(module: nn.Module, inputs: Any, degree: int) -> Layout:
    """Return the groups that the module's own data flow suggests; ``module`` is small and real.

    Raises:
        NotFollowedError: if torch.export does not take the module.
    """
    graph = exported(module, inputs)
    known = Known.of(module, graph)
    attempt = Attempt()
    while True:
        try:
            _follow(graph, attempt, degree, known)
        except _StuckError:
            attempt = attempt.anew()
            continue
        return _layout(module, attempt)


def _follow(graph: Graph, attempt: Attempt, degree: int, known: Known) -> None:
    tags: dict[Node, Tag] = {}
    for node in graph.nodes:
        held = {source: tags[source] for source in node.all_input_nodes if source in tags}
        try:
            tag = _next(graph, node, held, attempt, degree)
        except NotFollowedError as error:
            sources = sorted(_sources(held))  # alike on all ranks, whose sets have other orders
            if not sources:
                raise
            if not known.helps(graph, node, held, attempt):
                attempt.dead |= dict.fromkeys(sources, str(error))
                attempt.latent |= dict.fromkeys(attempt.latent.keys() & sources, False)
            raise _StuckError from error
        except SegmentsNeededError as error:
            for source in sorted(_sources(held) - attempt.latent.keys()):
                if source in attempt.shares:
                    attempt.dead[source] = "its fused output is taken apart twice"
                attempt.shares[source] = error.shares
            raise _StuckError from error
        if tag is not None:
            tags[node] = tag
            attempt.ends.append((tag.sources, None))
            attempt.sizes += [] if tag.is_whole else [(tag.sources, shape_of(node)[tag.dim])]
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
    if node.op == "placeholder":
        return _beside(graph, node, attempt)
    if not held:
        return None
    if node.op == "output":
        raise NotFollowedError("its output is the model's")
    if str(node.target).startswith("aten._assert"):
        return None
    if "getitem" in str(node.target):
        return next(iter(held.values()))
    is_whole = all(tag.is_whole for tag in held.values())
    if graph.home_of(node) in attempt.together and not is_whole:
        return _through_norm(graph, node, held, attempt)
    return _through_operator(graph, node, held, attempt, degree)


def _through_operator(
    graph: Graph, node: Node, held: dict[Node, Tag], attempt: Attempt, degree: int
) -> Tag:
    """An operator passes on what is divided, beside what is whole on all ranks."""
    sources, layers = _sources(held), set(graph.layers.values())
    divided = {each: tag for each, tag in held.items() if not tag.is_whole}
    own = {
        each
        for each in node.all_input_nodes
        if {name.rpartition(".")[0] for name in graph.parameters.get(each, ("",))} <= sources & layers
    }
    call = Call(node=node, tags=divided or held, degree=degree, own=frozenset(own))
    tag = replace(followed(call), sources=sources) if divided else Tag(dim=WHOLE, sources=sources)
    for operand in call.operands:
        if operand in own or operand in divided:
            continue
        if operand in graph.parameters:
            attempt.inside += [(tag.sources, name) for name in graph.parameters[operand]]
        elif operand in graph.trained and operand not in held:
            origin = origin_of(graph, operand, sources & attempt.dead.keys() or sources)
            if origin is not None and origin in attempt.dead and origin not in attempt.latent:
                attempt.latent[origin] = True
                raise _StuckError
            raise NotFollowedError("it meets a whole activation, whose gradient would be a share")
    return tag


def _through_layer(
    graph: Graph, node: Node, path: str, held: dict[Node, Tag], attempt: Attempt
) -> Tag | None:
    """A linear layer divides its output, or takes a divided input, or works inside of what is divided."""
    x = _input_of(graph, node)
    last = len(shape_of(node)) - 1
    if x not in held and path in attempt.dead:
        return _latent(graph, path, x, attempt)
    if x not in held:
        shares = attempt.shares.get(path, ())
        alike = len(set(shares)) == 1
        return Tag(
            dim=last,
            sources=frozenset({path}),
            outer=len(shares) if alike else 1,
            shares=() if alike else shares,
        )
    tag = held[x]
    if tag.is_whole and path not in attempt.dead:
        attempt.inner.add(path)
        return Tag(dim=last, sources=tag.sources | {path})
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


def _input_of(graph: Graph, layer: Node) -> Node:
    """Return what a layer reads: of parameters alone, as a table of positions, where nothing else is."""
    inputs = layer.all_input_nodes
    return next((each for each in inputs if each not in graph.parameters), inputs[0])


def _beside(graph: Graph, node: Node, attempt: Attempt) -> Tag | None:
    """A parameter that meets what is divided is divided as well, as one for each head."""
    (name,) = graph.parameters.get(node, ("",))
    home = name.rpartition(".")[0]
    if name not in attempt.beside or home in attempt.dead:
        return None
    return Tag(dim=0, sources=frozenset({home}))


def _latent(graph: Graph, path: str, x: Node, attempt: Attempt) -> Tag | None:
    """A layer that stays whole begins a region, if what is divided reads it, or another of the same input.

    The gradient of what both read would be whole of one and a share of the other.
    """
    begun = {_input_of(graph, node) for node, layer in graph.layers.items() if attempt.latent.get(layer)}
    if x in begun:
        attempt.latent.setdefault(path, True)
    return Tag(dim=WHOLE, sources=frozenset({path})) if attempt.latent.get(path) else None


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
        parts = {path: _column(module, path, attempt) for path in columns}
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


def _column(module: nn.Module, path: str, attempt: Attempt) -> Part:
    if attempt.latent.get(path):
        return Part(role=Role.LATENT)
    if feature_dims(module.get_submodule(path)) is None:
        return Part(role=Role.BESIDE)
    return Part(role=Role.COLUMN, segments=_segments(module, path, attempt), inner=path in attempt.inner)


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


def _kind(paths: list[str]) -> str:
    """Return the common place and the names in it, such as ``layers.*.mlp.{up,down}``."""
    pieces = [kind_of(path).split(".") for path in paths]
    shared = 0
    while all(len(each) > shared + 1 and each[: shared + 1] == pieces[0][: shared + 1] for each in pieces):
        shared += 1
    names = [".".join(each[shared:]) for each in pieces]
    return ".".join([*pieces[0][:shared], names[0] if len(names) == 1 else "{" + ",".join(names) + "}"])
