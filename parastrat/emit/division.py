"""What tensor parallelism does to the modules of one model, as torch's own styles can say it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Style(StrEnum):
    """What becomes of one module; a share is one of positions."""

    COLUMN = "column"
    #: positions are gathered before it
    COLUMN_OF_SHARE = "column of a share"
    ROW = "row"
    #: its sums are scattered along the positions
    ROW_TO_SHARE = "row to a share"
    EMBEDDING = "embedding"
    EMBEDDING_TO_SHARE = "embedding to a share"
    HEAD = "head"
    HEAD_OF_SHARE = "head of a share"
    #: its logits stay divided up to the loss
    HEAD_DIVIDED = "head, divided"
    #: it computes alike on all ranks
    WHOLE = "whole"
    #: alike too, by code that is given other things than one activation, such as a router or experts
    WHOLE_INSIDE = "whole, inside"
    WHOLE_OF_SHARE = "whole, of a share"
    WHOLE_INSIDE_OF_SHARE = "whole, inside, of a share"
    #: between columns and rows, on this rank's heads
    WHOLE_OF_HEADS = "whole, of heads"
    #: it hands one tensor to several columns
    READER = "reader"
    READER_OF_SHARE = "reader of a share"
    #: the blocks between which positions are divided
    FIRST_OF_SHARE = "first of a share"
    LAST_OF_SHARE = "last of a share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a module is given its activation: by keyword, or as the first of so many values."""

    keyword: str = ""
    positional: int = 1
    #: it returns one tensor, nothing beside it
    gives_one: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """All modules of one name, but for the number of the block."""

    #: such as ``model.layers.*.mlp.up_proj``
    name: str
    style: Style
    reading: Reading = Reading()


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A whole model."""

    #: the list of the repeated blocks, such as ``model.layers``
    container: str
    blocks: int
    places: tuple[Place, ...]
    #: modules that share their weight; each after the first takes the first's
    tied: tuple[tuple[str, ...], ...] = ()
    #: its class, such as ``LlamaForCausalLM of transformers``; empty where nobody says it
    model: str = ""
    #: tokens choose experts, of which some may see none of a rank's
    routed: bool = False

    @property
    def start_of_shares(self) -> str:
        """The module before which positions are counted; empty where they are not divided."""
        starts = (Style.EMBEDDING_TO_SHARE, Style.FIRST_OF_SHARE)
        return next((place.name for place in self.places if place.style in starts), "")

    @property
    def edges(self) -> tuple[Place, ...]:
        """The first and the last block of those between which positions are divided, if they are."""
        return tuple(place for place in self.places if place.style in EDGES)

    @property
    def divides_logits(self) -> bool:
        """Whether the loss is given a share of the logits."""
        return any(place.style is Style.HEAD_DIVIDED for place in self.places)


#: of the blocks of each stage, where there are stages
EDGES = (Style.FIRST_OF_SHARE, Style.LAST_OF_SHARE)
