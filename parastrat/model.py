"""A model as a chain of blocks: what each holds, computes and keeps, for one sample."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from parastrat.moments import Attends, Busy, Halfway
from parastrat.saved import NOTHING, Activations, Saved
from parastrat.stage_load import StageLoad
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from parastrat.scans import Scans
    from parastrat.stack import Kernels


class Split(StrEnum):
    """Which axis divides a quantity."""

    #: the same on every rank
    REPLICATED = "replicated"
    #: divided by tp
    TENSOR = "tensor"
    #: divided by tp, with sequence parallelism only
    SEQUENCE = "sequence"
    #: divided by ep
    EXPERT = "expert"
    #: divided by tp where that divides the vocabulary, or the stack pads it
    VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of one block that are treated alike."""

    trainable: int = 0
    frozen: int = 0
    split: Split = Split.REPLICATED
    #: blocks that name the same group share these parameters; they count once in the model
    tie_group: str | None = None
    #: autocast makes short copies of them: not for grouped products, which it does not know
    cast: bool = True

    @property
    def count(self) -> int:
        return self.trainable + self.frozen


class OperatorKind(StrEnum):
    MATMUL = "matmul"
    #: one matmul per expert, on the tokens routed to it
    GROUPED_MATMUL = "grouped_matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    #: norms, activations, residuals, dropout: bound by memory traffic
    ELEMENTWISE = "elementwise"
    #: a table look-up
    EMBEDDING = "embedding"
    RECURRENT = "recurrent"
    #: a state-space model's chunks, and what passes between them
    SCAN = "scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a block's forward, for one sample."""

    kind: OperatorKind
    flops: float  #: multiply-accumulates count twice; causal attention counts its lower half
    bytes: float  #: that are read and written at least
    #: rows for one sample, and the other sides; of attention rows of heads, keys of each, a head's width
    m: int = 0
    n: int = 0
    k: int = 0
    #: of a convolution, how often it reads an element of its image: places of its filter over its strides
    reuse: float = 1.0
    split: Split = Split.REPLICATED
    split_side: str = ""  #: that a tensor split divides: "n" is column parallel, "k" row parallel
    count: int = 1  #: passes of this operator in one forward of the block
    weighted: bool = True  #: backward needs the gradients of the weights as well as of the input
    useful: float = 1.0  #: share of the FLOPs that reaches the output; the rest is multiplied by zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """What a block keeps and makes where its weights stay in fp32 and autocast casts what products read.

    The residual stream is then in fp32, and each product that reads a norm has a short copy of its own.
    """

    activations: Activations
    working: Saved
    boundary_bytes: float
    boundary_fixed: float = 0.0
    awaited: Saved = NOTHING
    retained: Saved = NOTHING
    beside_added: Saved = NOTHING
    busy: tuple[Busy, ...] = ()
    masks: Saved = NOTHING
    copies_input: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A stretch of the chain that pipeline stages never cut, repeated ``repeat`` times.

    Activations and operators hold for one sample at the model's ``sequence_length`` and ``precision``;
    both are linear in the micro-batch.
    """

    name: str
    repeat: int
    parameters: tuple[Parameters, ...]
    operators: tuple[Operator, ...]
    activations: Activations
    working: Saved  #: alive only while this block's forward and backward run
    #: all tensors alive across the cut behind one repeat, and beside these, for any number of samples
    boundary_bytes: float
    boundary_fixed: float = 0.0
    #: FLOPs of pairs that a mask hides and a kernel computes all the same: stages are cut by them too
    hidden_flops: float = 0.0
    #: gradients of its products and norms, of which those of the weights are made, where that waits
    awaited: Saved = NOTHING
    #: beside these what may be there while nothing that it keeps is freed, in place of ``working``
    retained: Saved = NOTHING
    #: of its parameters' gradients the share that is there when its backward holds most; None: unknown
    meanwhile: float | None = None
    #: such moments, where it is not the same for any number of samples; ``working`` alone stands for none
    busy: tuple[Busy, ...] = ()
    #: when those of a feed-forward are there; None: no such moment is known
    halfway: Halfway | None = None
    #: of its weights the one whose gradient, made anew before it is added to that of micro-batches before,
    #: is most beside what else exists then, in place of ``working``
    added: Parameters | None = None
    beside_added: Saved = NOTHING
    autocast: Autocast | None = None  #: what is otherwise then
    #: parameters of which a tp rank takes stretches, for which they are gathered
    stretched: int = 0
    #: the most of them whose gradient is put together at once, as often as it is there then; what more than
    #: halfway is gone by then, and parameters of whose shares that is so, or not there yet
    regathered: int = 0
    unshared: int = 0
    behind_regathered: Saved = NOTHING
    #: of the model's output what a training script holds while backward runs
    output: Saved = NOTHING
    #: the stream of a head whose code counts positions, so that each rank of a sequence has all of them
    between: Saved = NOTHING
    #: attention masks made behind it, which checkpoints keep; stages without it make them as well
    masks: Saved = NOTHING
    #: keeps a copy of what it was given, in another format, and not that itself; None: unknown
    copies_input: bool | None = None
    #: one more tensor of a loss that is made while backward runs, of all tp ranks that compute it together
    loss_parallel_bytes: float = 0
    #: collectives over tp in one forward (backward has as many), each of ``tensor_parallel_bytes``
    tensor_parallel_collectives: int = 0
    tensor_parallel_bytes: float = 0
    #: bytes that every rank sends to the experts in one forward, and gets back
    expert_parallel_bytes: float = 0
    experts_per_token: int = 0  #: to which each token goes, of whose copies those bytes consist
    context_parallel_bytes: float = 0  #: keys and values that cp gathers in one forward, of one sample
    attends: Attends | None = None  #: its backward where they are gathered; None: nothing is known of it
    #: share of its forward that its own backward makes again, whatever is recomputed, by FLOPs
    remade: float = 0.0
    chunks: int = 1  #: parts of its tokens on which it runs one after another
    unit: bool = True  #: a repeated block, an FSDP unit of its own; the others belong to the root unit

    @property
    def moments(self) -> tuple[Busy, ...]:
        """Return the moments at which it may hold most; of an unknown share of gradients none."""
        return self.busy or (Busy(working=self.working, meanwhile=self.meanwhile or 0.0),)

    @property
    def parameter_count(self) -> int:
        """Parameters of one repeat."""
        return sum(group.count for group in self.parameters)

    @property
    def flops(self) -> float:
        """Forward FLOPs of one repeat for one sample."""
        return sum(operator.flops * operator.count for operator in self.operators)


class Family(StrEnum):
    """Transformer families with a closed form, and other modules."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"
    VISION_TRANSFORMER = "vision-transformer"
    CONVOLUTIONAL = "convolutional"
    #: built and traced, of no known family
    MODULE = "module"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model at one sequence length and precision.

    None means that the model has no such thing (a CNN has no heads) or that it is unknown.
    """

    ref: str  #: MODEL as the user typed it
    name: str
    family: Family
    blocks: tuple[Block, ...]
    parameters: int  #: ties counted once
    #: parameters that one token uses; equals ``parameters`` without experts
    active_parameters: int
    sequence_length: int | None  #: tokens of one sample that the blocks hold for; None without
    precision: Precision
    causal: bool
    layers: int  #: repeated blocks, as the runtime finds them in the module
    stacks: int = 1  #: lists that they stand in, such as an encoder's and a decoder's
    positions: int | None = None  #: of a sample, where these are no tokens: shared evenly or not; 0: never
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    divisible: int | None = None  #: heads and features that tp must divide, of a module, or groups of heads
    vocab: int | None = None
    experts: int | None = None
    max_sequence_length: int | None = None
    buffers: int = 0  #: bytes of a module's buffers, which every rank has whole
    changing_buffers: bool | None = None  #: a checkpoint has some, which may change: running statistics
    #: tokens choose which of the model's modules run, so that some may see none of a rank's batch
    routed: bool | None = None
    drops: bool | None = None  #: activations at random, while it trains
    scans: Scans | None = None  #: None: no layer scans
    divides_tokens: bool = False  #: whole experts are given a tp rank's stretch, where attention is divided
    divides_sequences: bool = True  #: over cp: layers attend by a kernel, to positions that count alike
    #: what pipeline stages hold equally much of; Megatron's hold equally many layers
    stage_load: StageLoad = StageLoad.FLOPS
    #: each operator of the blocks is one that torch dispatches; of other closed forms it stands for several
    dispatched: bool = False
    source: str = ""  #: where architecture and parameter count come from
    caveats: tuple[str, ...] = ()  #: what the estimate leaves out or assumes, in sentences for the report

    @property
    def distinct_blocks(self) -> tuple[Block, ...]:
        """The blocks, each once that stands several times in the chain."""
        return tuple({id(block): block for block in self.blocks}.values())

    @property
    def flops(self) -> float:
        """Forward FLOPs of one sample."""
        return sum(block.flops * block.repeat for block in self.blocks)

    @property
    def trainable_parameters(self) -> int:
        """Trainable parameters, ties counted once."""
        ties: dict[str, int] = {}
        untied = 0
        for block in self.blocks:
            for group in block.parameters:
                if group.tie_group is None:
                    untied += group.trainable * block.repeat
                else:
                    ties[group.tie_group] = group.trainable
        return untied + sum(ties.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDefaults:
    """What a preset's published training used; stands in for flags that were not given."""

    sequence_length: int | None = None
    global_batch_size: int | None = None
    #: samples of a micro-batch, and each rank's stages of its pipeline, at that batch
    micro_batch_size: int | None = None
    virtual_stages: int | None = None
    optimizer: Optimizer | None = None
    source: str = ""


class ModelSource(Protocol):
    """Something that yields a model for any sequence length: a preset, a config file, a traced module."""

    @property
    def ref(self) -> str:
        """MODEL as the user typed it."""

    @property
    def defaults(self) -> TrainingDefaults:
        """What the published training used, where known."""

    @property
    def family(self) -> Family:
        """The transformer family, or another kind of module."""

    @property
    def has_tokens(self) -> bool:
        """Samples are sequences of tokens."""

    @property
    def max_sequence_length(self) -> int | None:
        """The longest sequence that positions allow; None when unknown or without tokens."""

    def at(self, sequence_length: int | None, precision: Precision, kernels: Kernels) -> ModelSpec:
        """Return the model's blocks for one sequence length, number format and set of kernels."""
