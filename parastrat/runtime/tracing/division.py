"""What tensor parallelism divides of a traced step, told from who reads whose output.

What a column gives is divided, and so is all that is made of it, until a row takes it in and the ranks add
up (arXiv:1909.08053, section 3). Backward goes the other way: a row's weight gives back a share, a column's
a summand. What is whole in the blocks is divided along the sequence (arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from parastrat.model import Split
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensor_parallel.layout import Layout, Role

_COLUMNS = (Role.COLUMN, Role.COLUMN_GATHERED)
_ROWS = (Role.ROW, Role.ROW_OF_WHOLE)
_WHOLE = (Role.SUMMED, Role.LATENT)
_ENDS = (Role.EMBEDDING, Role.COLUMN_GATHERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What a layout says of the parameters of a module, by name."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    #: of these the tables and heads, whose rows are those of a vocabulary
    vocabulary: frozenset[str] = frozenset()
    #: of these the columns, with the region that each begins: its modules share one exchange of an input
    regions: Mapping[str, str] = field(default_factory=dict)
    #: what is whole in the blocks is divided along the sequence
    sequence: bool = False
    #: a loss reads the logits, which stay divided; else the model itself, for which they are gathered
    logits: bool = True

    @classmethod
    def of(cls, layout: Layout, module: nn.Module, *, logits: bool) -> Division:
        """Return what a layout says of a module's parameters."""
        parts, blocks = layout.parts, tuple(f"{name}." for name in repeated_blocks(module).names)
        told = {name: parts.get(name.rpartition(".")[0]) for name, _ in module.named_parameters()}
        # weights that are whole in a divided region have no say
        roles = {name: part.role for name, part in told.items() if part and part.role not in _WHOLE}
        vocabulary = (name for name, role in roles.items() if role in _ENDS and not name.startswith(blocks))
        readers = {
            # without rows nothing tells when all have read
            reader: group.readers[0] if group.rows else reader
            for group in layout.groups
            for reader in group.readers
        }
        began = {name: readers.get(name.rpartition(".")[0]) for name in roles}
        return cls(
            roles=roles,
            vocabulary=frozenset(vocabulary),
            regions={name: region for name, region in began.items() if region is not None},
            sequence=layout.sequence,
            logits=logits,
        )

    def of_parameter(self, name: str) -> Split:
        """Return what divides a parameter. A row's bias is one of those that are whole."""
        role = self.roles.get(name)
        if name in self.vocabulary:
            return Split.VOCABULARY
        whole = role in _ROWS and name.endswith("bias")
        return Split.REPLICATED if role is None or whole else Split.TENSOR

    def of_result(self, read: Iterable[Split], weights: Sequence[str], *, product: bool) -> Split:
        """Return what divides the result of an operator of the forward.

        Args:
            read: what divides each of the tensors that it reads, but for parameters.
            weights: the names of the parameters that it reads.
            product: it multiplies with them; else it looks rows up, or adds them.
        """
        roles = {self.roles.get(name) for name in weights}
        if roles.intersection(_ROWS):
            return Split.REPLICATED
        if Role.COLUMN in roles:
            return Split.TENSOR
        if roles.intersection(_ENDS):
            predicted = product and self.vocabulary.issuperset(weights)
            return Split.VOCABULARY if predicted else Split.REPLICATED
        return of_all(read)

    def of_gradient(self, read: Iterable[Split], weights: Sequence[str]) -> Split:
        """Return what divides the result of an operator of backward, as ``of_result``."""
        roles = {self.roles.get(name) for name in weights}
        if roles.intersection(_ROWS):
            return Split.TENSOR
        # a summand for every rank
        return Split.REPLICATED if roles.intersection((*_COLUMNS, *_ENDS)) else of_all(read)

    def side_of(self, weights: Iterable[str]) -> str:
        """Return the side of a product that is divided: "n" of a column, "k" of a row."""
        roles = {self.roles.get(name) for name in weights}
        if roles.intersection((*_COLUMNS, *_ENDS)):
            return "n"
        return "k" if roles.intersection(_ROWS) else ""

    def gathers(self, weights: Iterable[str]) -> bool:
        """Return whether an operator's input is gathered along the sequence: it is a column."""
        return self.sequence and bool(self.side_of(weights) == "n")

    def starts_behind(self, weights: Iterable[str]) -> bool:
        """Return whether what runs before the blocks gives shares of positions: a divided table alone."""
        read = {name.rpartition(".")[0] for name in weights}
        return self.sequence and len(read) == 1 and self.vocabulary.issuperset(weights)

    def ends_with(self, weights: Iterable[str]) -> bool:
        """Return whether what runs behind the blocks takes shares of positions, up to a divided head."""
        divided = [name for name in weights if name in self.roles]
        return self.sequence and bool(divided) and self.vocabulary.issuperset(divided)

    def adds_up(self, weights: Iterable[str]) -> bool:
        """Return whether the ranks add up an operator's results."""
        return any(self.roles.get(name) in _ROWS for name in weights)


def of_all(read: Iterable[Split]) -> Split:
    """Return what divides what is made of tensors that are divided so."""
    held = set(read)
    return next((way for way in (Split.VOCABULARY, Split.TENSOR) if way in held), Split.REPLICATED)
