"""Where a model is cut into the stages of a pipeline, as a few lines of torch can say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """The parts of the model that one stage runs, in the order of the forward."""

    #: names of modules in front of its blocks
    before: tuple[str, ...] = ()
    #: numbers of its first block, and of the one behind its last; equal where it has none
    first: int
    end: int
    #: names of modules behind its blocks
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A whole model; one tensor of the same shape passes from each stage to the next."""

    #: the list of the repeated blocks, such as ``model.layers``
    container: str
    blocks: int
    stages: tuple[StageParts, ...]
    #: of what passes, behind its samples
    sizes: tuple[int, ...]
    #: of what passes, by torch's name, such as ``bfloat16``
    dtype: str
    #: what passes has all dimensions of the input in front of ``sizes``, such as positions
    by_position: bool = True
    #: the attribute of the model's output that the loss takes; empty where the output is a tensor
    output: str = ""
    #: what a stage returns is a view, which torch cannot detach
    is_view: bool = False
    #: elements are dropped at random
    drops: bool = False
    #: the model keeps keys and values for the next token unless told otherwise
    caches: bool = False
    #: one weight by its name in each stage that holds it, where they are on several ranks
    tied: tuple[tuple[int, str], ...] = ()
    #: its class, such as ``LlamaForCausalLM of transformers``; empty where nobody says it
    model: str = ""
    #: tokens choose experts, of which some may see none of a rank's
    routed: bool = False
