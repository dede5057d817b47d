"""Which of a model's blocks follow each other on this rank."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from parastrat.runtime.blocks import repeated_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The blocks of a model by name. Of a pruned model they are those of the whole."""

    names: tuple[str, ...]
    #: blocks that run one after the other here; activations are whole before and behind each row of them
    runs: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Extent:
        """Return that of a whole module."""
        names = repeated_blocks(module).names
        return cls(names=names, runs=(names,) if names else ())

    @classmethod
    def of_single_blocks(cls, module: nn.Module) -> Extent:
        """Return that of a module with activations whole between all of its blocks."""
        names = repeated_blocks(module).names
        return cls(names=names, runs=tuple((name,) for name in names))

    def modules(self, module: nn.Module) -> list[nn.Module]:
        """Return the blocks."""
        return [module.get_submodule(name) for name in self.names]
