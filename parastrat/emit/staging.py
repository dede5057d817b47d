"""Where a model is cut into the stages of a pipeline, as a few lines of torch can say it."""

from __future__ import annotations

from dataclasses import dataclass

#: what passes to a later stage: the part that returns it, and its place among all that this returns
Sent = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """One tensor of one shape passes from each stage to the next: what the stage's last part returns."""

    #: behind its samples
    sizes: tuple[int, ...]
    #: by torch's name, such as ``bfloat16``
    dtype: str
    #: it has all dimensions of the input in front of ``sizes``, such as positions
    by_position: bool = True
    #: what a stage returns is a view, which torch cannot detach
    is_view: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A whole model."""

    #: names of the repeated blocks, in the order of the forward
    blocks: tuple[str, ...]
    #: names of the parts that each stage runs, in the order of the forward
    stages: tuple[tuple[str, ...], ...]
    #: what passes between stages, where the lines say that it is always alike
    alike: Alike | None = None
    #: what each stage receives, where they do not
    received: tuple[tuple[Sent, ...], ...] = ()
    #: the forward writes to what a part of it has returned
    writes: bool = False
    #: how the forward takes what a batch is: ``inputs``, ``*inputs`` or ``**inputs``
    takes: str = "inputs"
    #: the attribute of the model's output that the loss takes; empty where the output is a tensor
    output: str = ""
    #: elements are dropped at random
    drops: bool = False
    #: the model keeps keys and values for the next token unless told otherwise
    caches: bool = False
    #: buffers of its checkpoint change while it trains, such as running statistics
    statistics: bool = False
    #: one weight by its name in each stage that holds it, where they are on several ranks
    tied: tuple[tuple[int, str], ...] = ()
    #: its class, such as ``LlamaForCausalLM of transformers``; empty where nobody says it
    model: str = ""
    #: tokens choose experts, of which some may see none of a rank's
    routed: bool = False

    @property
    def containers(self) -> tuple[str, ...]:
        """The lists that hold the blocks, such as ``model.layers``; empty of blocks right in the model."""
        return tuple(dict.fromkeys(block.rpartition(".")[0] for block in self.blocks))
