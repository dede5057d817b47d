"""A model's operators and parameters as torch.export shows them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from parastrat.runtime.blocks import holds_experts
from parastrat.runtime.silence import quiet_export
from parastrat.runtime.tensor_parallel.by_values import flags_in, reads_values
from parastrat.runtime.tensor_parallel.layout import Given
from parastrat.runtime.tensor_parallel.styles import feature_dims
from parastrat.runtime.tensor_parallel.tags import NotFollowedError
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.untouched import untouched

#: a module's name, and how often it was called before
ModuleCall: TypeAlias = "tuple[str, int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A model's operators in order, and which of its modules call them."""

    nodes: tuple[Node, ...]
    #: linear layers by the node that computes them
    layers: Mapping[Node, str]
    #: nodes that depend on nothing but parameters, and the names of these
    parameters: Mapping[Node, frozenset[str]]
    #: nodes that depend on parameters
    trained: frozenset[Node]
    #: nodes by whose values the forward may have chosen its way; none where it chooses by none
    choices: frozenset[Node]
    #: the modules' calls that each node is made in, from the outermost
    calls: Mapping[Node, tuple[ModuleCall, ...]]
    #: the flags that a module's call is given; none where it is given numbers, or more
    given: Mapping[ModuleCall, Given | None]
    #: those that it returns
    returned: Mapping[ModuleCall, Given | None]

    def home_of(self, node: Node) -> str:
        """Return the module whose own forward a node is of; empty: the model's."""
        calls = self.calls[node]
        return calls[-1][0] if calls else ""


def exported(module: nn.Module, inputs: Any) -> Graph:
    """Return the module's graph; grouped and repeated layers are as often in it as they are called.

    A forward that chooses by values of tensors goes as it does with those of these inputs. Where torch
    follows no experts that look for their tokens, they are left out: the graph hands their tokens on.

    Raises:
        NotFollowedError: quoting torch.export.
    """
    try:
        return _exported_graph(module, inputs)
    except NotFollowedError:
        if not _experts(module):
            raise
        try:
            return _exported_graph(module, inputs, with_experts=False)
        except NotFollowedError:  # the first one tells more
            pass
        raise


def _experts(module: nn.Module) -> list[nn.Module]:
    return [part for name, part in module.named_modules() if name and holds_experts(name, part)]


def _handed_on(*args: Any, **kwargs: Any) -> torch.Tensor:
    tokens: torch.Tensor = next(each for each in tensors_in((args, kwargs)) if each.is_floating_point())
    return tokens.clone()


def _exported_graph(module: nn.Module, inputs: Any, *, with_experts: bool = True) -> Graph:
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    args = args if isinstance(args, tuple) else (args,)
    try:
        # a forward may leave tensors in the module, which could not be copied any more
        with quiet_export(), untouched(module):
            copied = copy.deepcopy(module)
            for part in () if with_experts else _experts(copied):
                part.forward = _handed_on
            noted = _Flags(copied)
            program, chooses = _program(copied, args, kwargs)
    except Exception as error:  # it runs the model's code: anything may come out
        said = (str(error).strip().splitlines() or [""])[0]
        raise NotFollowedError(
            f"torch.export does not follow this model ({type(error).__name__}: {said})"
        ) from error
    held = program.graph_signature.inputs_to_parameters
    parameters = {node: frozenset({held[node.name]}) for node in program.graph.nodes if node.name in held}
    trained: set[Node] = set()
    layers = {}
    names = _first_names(module)
    for node in program.graph.nodes:
        if node in parameters or trained.intersection(node.all_input_nodes):
            trained.add(node)
        path = _layer(module, node, names)
        if path is not None:
            layers[node] = path
        elif node.all_input_nodes and all(each in parameters for each in node.all_input_nodes):
            parameters[node] = frozenset().union(*(parameters[each] for each in node.all_input_nodes))
    nodes = tuple(program.graph.nodes)
    return Graph(
        nodes=nodes,
        layers=layers,
        parameters=parameters,
        trained=frozenset(trained),
        choices=frozenset(n for n in nodes if chooses and reads_values(n.target, n.args)),
        calls={node: _calls(node) for node in nodes},
        given=noted.given,
        returned=noted.returned,
    )


def _calls(node: Node) -> tuple[ModuleCall, ...]:
    """Return the calls of a node; torch writes ``name@1`` for a module's second."""
    stack = node.meta.get("nn_module_stack") or {}
    return tuple((path, int(key.partition("@")[2] or 0)) for key, (path, _) in stack.items())


class _Flags:
    """Notes the flags that the calls of a module's parts are given, and return, while it runs."""

    def __init__(self, module: nn.Module) -> None:
        self.given: dict[ModuleCall, Given | None] = {}
        self.returned: dict[ModuleCall, Given | None] = {}
        self._counts: Counter[str] = Counter()
        self._running: list[ModuleCall] = []
        module.register_forward_pre_hook(self._anew)
        for name, part in module.named_modules():
            if name:
                part.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
                part.register_forward_hook(self._leave)

    def _anew(self, *_: Any) -> None:
        for noted in (self.given, self.returned, self._counts, self._running):
            noted.clear()

    def _enter(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = name, self._counts[name]
        self._counts[name] += 1
        self.given[call] = flags_in(args, kwargs)
        self._running.append(call)

    def _leave(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        self.returned[self._running.pop()] = flags_in((output,), {})


def _program(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ExportedProgram, bool]:
    """Export a module; return whether its forward chooses by values, too."""
    try:
        return _exported(module, args, kwargs), False
    except GuardOnDataDependentSymNode:
        with functorch_config.patch(fake_tensor_propagate_real_tensors=True):
            return _exported(module, args, kwargs), True


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Export a module; one that returns what torch.export does not know as if it returned its tensors."""
    try:
        return torch.export.export(module, args, kwargs, strict=False)
    except (RuntimeError, ValueError) as error:
        if "not a known type" not in str(error):
            raise
    hook = module.register_forward_hook(lambda _module, _args, output: tensors_in(output))
    try:
        return torch.export.export(module, args, kwargs, strict=False)
    finally:
        hook.remove()


#: what linear layers compute with
_PRODUCTS = (torch.ops.aten.linear.default, torch.ops.aten.addmm.default, torch.ops.aten.matmul.default)


def _first_names(module: nn.Module) -> dict[str, str]:
    """Return the name by which ``named_modules`` knows a module, by each of its names."""
    first: dict[nn.Module, str] = {}
    return {
        name: first.setdefault(part, name) for name, part in module.named_modules(remove_duplicate=False)
    }


def _layer(module: nn.Module, node: Node, names: Mapping[str, str]) -> str | None:
    """Return the linear layer whose own forward this node is."""
    if node.target not in _PRODUCTS:
        return None
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = names.get(stack[-1][0], "") if stack else ""
    target = module.get_submodule(path) if path else None
    return path if target is not None and feature_dims(target) is not None else None
