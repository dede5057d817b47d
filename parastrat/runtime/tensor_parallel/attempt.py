"""What is found out of a model's layers while the data between them is followed, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn
from torch.fx import Node

from parastrat.runtime.tensor_parallel.calls import short_name
from parastrat.runtime.tensor_parallel.graph import Graph
from parastrat.runtime.tensor_parallel.layout import Given
from parastrat.runtime.tensor_parallel.norms import TOGETHER, may_normalise
from parastrat.runtime.tensor_parallel.styles import divisible_beside
from parastrat.runtime.tensor_parallel.tags import Tag


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
    #: whole layers that a region begins with, as what is divided reads their outputs; false: it cannot
    latent: dict[str, bool] = field(default_factory=dict)
    #: columns that read what such layers gave
    inner: set[str] = field(default_factory=set)
    #: parameters that stand beside layers, and are divided as what they meet
    beside: dict[str, None] = field(default_factory=dict)
    #: sizes of the divided dimension on its way
    sizes: list[tuple[frozenset[str], int]] = field(default_factory=list)
    #: by column: kinds of modules in whose calls its way is always the same, and the flags they are given
    alike: Mapping[str, frozenset[tuple[str, Given]]] = field(default_factory=dict)

    def anew(self) -> Attempt:
        """Return what the next one begins with."""
        return Attempt(
            dead=self.dead,
            shares=self.shares,
            together=self.together,
            latent=self.latent,
            beside=self.beside,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Where else than in layers features may be divided."""

    #: modules that may normalise all features
    norms: frozenset[str]
    #: parameters that may be divided beside layers
    beside: frozenset[str]

    @classmethod
    def of(cls, module: nn.Module, graph: Graph) -> Known:
        """Return where in a module, whose graph is given."""
        joining = {graph.home_of(node) for node in graph.nodes if short_name(node) in TOGETHER}
        norms = (name for name, part in module.named_modules() if name in joining and may_normalise(part))
        return cls(norms=frozenset(norms), beside=divisible_beside(module))

    def helps(self, graph: Graph, node: Node, held: Mapping[Node, Tag], attempt: Attempt) -> bool:
        """Return whether an operator that could not be followed may be, with what is noted here."""
        home = graph.home_of(node)
        if home in self.norms and home not in attempt.together:
            attempt.together[home] = None
            return True
        met = (each for each in node.all_input_nodes if each not in held)
        names = {name for each in met for name in graph.parameters.get(each, ())}
        found = sorted(names & self.beside - attempt.beside.keys())
        attempt.beside |= dict.fromkeys(found)
        return bool(found)
