"""The software that runs a plan, as physical parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parastrat.plan import Recompute, Shard


class Kernels(StrEnum):
    """Which kernels compute norms, rotary embeddings and activations; decides what backward keeps."""

    #: one kernel per tensor operation, as Hugging Face models run
    EAGER = "eager"
    #: so, but for the loss, which a compiler fuses
    EAGER_BLOCKS = "eager-blocks"
    #: fused by a compiler, block by block; the loss is the training script's, in eager mode
    COMPILED = "compiled"
    #: the loss as well
    COMPILED_LOSS = "compiled-loss"
    #: hand-fused, as Megatron-Core with Transformer Engine
    FUSED = "fused"
    #: hand-fused, but attention is two products with a softmax between them, as before flash attention
    FUSED_MATH = "fused-math"

    @property
    def eager(self) -> bool:
        """Whether blocks run one kernel per tensor operation."""
        return self in (Kernels.EAGER, Kernels.EAGER_BLOCKS)

    @property
    def compiled(self) -> bool:
        """Whether a compiler fuses the blocks."""
        return self in (Kernels.COMPILED, Kernels.COMPILED_LOSS)

    @property
    def keeps_scores(self) -> bool:
        """Whether attention is two products with all scores between them."""
        return self is Kernels.FUSED_MATH

    @property
    def fused(self) -> bool:
        """Whether blocks are fused by hand."""
        return self in (Kernels.FUSED, Kernels.FUSED_MATH)


class Attention(StrEnum):
    """Which flash attention a stack runs."""

    #: that of 2022, in Triton
    FIRST = "first"
    #: FlashAttention-2, which torch has
    SECOND = "second"
    #: kernels made for a device, cuDNN's or later FlashAttentions, where it has any
    NEWEST = "newest"
    #: these, dropping a share of the scores
    DROPPING = "dropping"
    #: what torch's flex_attention makes with Triton
    FLEX = "flex"


class Crossing(StrEnum):
    """What pipelines hold of the tensors that cross between their stages."""

    #: what was sent, until its micro-batch runs backward, and buffers for all that a step receives
    BUFFERS = "buffers"
    #: what was sent, until its micro-batch runs backward
    SENT = "sent"
    #: nothing that a stage does not read
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstated:
    """What a stack does where a source of a run does not say: one default each, from its documentation."""

    recompute: Recompute
    #: over data ranks
    shard: Shard
    #: where there is tensor parallelism
    sequence_parallel: bool
    #: samples of each data rank's step, in short formats and in fp32; None: they have to be stated
    samples_of_rank: int | None = None
    samples_of_rank_in_fp32: int | None = None
    #: without a pipeline; None: it has to be stated
    gradient_accumulation_steps: int | None = None
    #: the day, YYYY-MM-DD, since which micro-batches of a pipeline have one sample; before it there were as
    #: many as ranks. None: it has to be stated
    single_samples_since: str | None = None
    #: the day, YYYY-MM-DD, since which its recipes in mxfp8 are one CUDA graph a step, for presets whose
    #: names begin so; None: never
    captures_since: str | None = None
    captured_models: tuple[str, ...] = ()
    #: the day, YYYY-MM-DD, since which its own training script compiles the loss too; None: never. For
    #: presets whose names begin so, where any are named
    compiles_loss_since: str | None = None
    compiled_loss_models: tuple[str, ...] = ()
    #: the day, YYYY-MM-DD, until which its own training script held the logits that a model returned, in
    #: fp32, while backward ran; None: never
    holds_fp32_logits_until: str | None = None
    #: the day, YYYY-MM-DD, since which selective recompute of runs that gather in a graph keeps every
    #: product; None: never
    graph_keeps_products_since: str | None = None
    #: the first day, YYYY-MM-DD, on which that kept all that the graph gathered, and the last; None: none
    graph_keeps_gathered: tuple[str, str] | None = None
    #: the day, YYYY-MM-DD, since which selective recompute keeps what experts are sent and give back; None:
    #: never
    keeps_exchanged_since: str | None = None
    #: the day, YYYY-MM-DD, since which embedding and head are FSDP2 units of their own; None: never
    ends_apart_since: str | None = None
    #: the day, YYYY-MM-DD, since which its runs' AdamW is one kernel; None: as the stack's
    one_kernel_steps_since: str | None = None
    #: whether what sequence parallelism divides crosses between pipeline stages as it is; None: as the
    #: stack's
    crosses_divided: bool | None = None
    #: whether experts of the runs' models are gathered at another time than what is around them; None: as
    #: the stack's
    experts_apart: bool | None = None
    #: of the runs' parallel loss; None: as the stack's
    parallel_loss_tensors: int | None = None
    #: of the runs' gradients under mixed precision; None: as the stack's
    mixed_gradient_bytes: int | None = None
    #: the day, YYYY-MM-DD, until which its models repeated keys and values for all heads that share them,
    #: which context parallelism then gathers; None: they never did
    repeats_keys_until: str | None = None
    #: the stack that runs in fp8 are on; None: this one
    stack_in_fp8: str | None = None
    #: whether weights are gathered in fp8 where a tensor has one scale
    gathers_fp8: bool = False
    #: stages on each rank under an interleaved schedule that does not say how many
    interleaved_stages: int | None = None
    #: presets whose names begin so attend by flex_attention, or drop scores
    flex_models: tuple[str, ...] = ()
    dropping_models: tuple[str, ...] = ()
    #: tokens of a sample in fine-tuning runs, which pack as many into a sequence as it holds; attention
    #: does not cross them. None: a sequence is one sample
    packed_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Where the bytes live and what runs at once. Overlaps are shares of communication hidden, 0 to 1."""

    name: str
    kernels: Kernels
    #: bytes of an fp32 copy kept beside short-format weights under mixed precision (0: none)
    master_weight_bytes: int
    #: bytes of one weight element as the forward reads it under mixed precision, before any gather
    mixed_parameter_bytes: int
    #: bytes of one gradient element under mixed precision, accumulators among them
    mixed_gradient_bytes: int
    #: DDP's all-reduce
    dp_overlap: float
    #: ZeRO-1 and ZeRO-2
    zero_overlap: float
    fsdp_overlap: float
    #: of collectives on activations of tensor parallelism
    tp_overlap: float
    #: of those under asynchronous tensor parallelism
    async_tp_overlap: float
    #: of what pipeline ranks with several stages send
    pp_overlap: float
    #: share of a link's bus bandwidth that collectives reach inside a training step
    network_efficiency: float
    #: traffic of elementwise kernels over the least possible
    elementwise_factor: float
    #: the same of operators that torch dispatches, of which traced blocks consist and whose own is counted
    dispatched_factor: float
    #: kernels launched per operator of a block in closed form, which stands for several of torch's, forward
    launches_per_operator: float
    #: kernels launched per operator that torch dispatches, of which traced blocks consist, forward
    launches_per_dispatch: float
    #: bytes moved to cast one element of an fp8 product's input, weights or output's gradient
    fp8_cast_bytes: float
    #: time of a step outside blocks, collectives and optimizer
    step_constant_s: float
    #: what its "selective" activation checkpointing is
    selective_recompute: Recompute
    #: what its pipelines hold of tensors that cross
    crossing: Crossing
    unstated: Unstated
    #: 95th percentile of this stack's memory error, as a share of the estimate
    memory_margin: float
    #: allocated bytes that the caching allocator cannot use, as a share of the peak
    fragmentation: float
    #: CUDA context, libraries and communicator buffers of one process, bytes
    context_bytes: int
    #: interpreter, libraries and the context's host side of one process, bytes of its host's memory
    host_process_bytes: int
    #: 80 % of measured step times lie within exp(+-this) of the estimate
    time_spread: float
    source: str
    #: the same of models with experts, where their runs were told apart; None: as time_spread
    time_spread_with_experts: float | None = None
    #: whether a token's copies for experts of one scale-up domain cross into it as one, and those for
    #: experts of one rank as one there
    dispatch_once_per_domain: bool = False
    #: of fp8_cast_bytes, those of a transposed copy for backward, made with the cast
    transposed_cast_bytes: float = 0.0
    #: the major number of the compute capability from which products need none of these; None: all do
    transposes_below: int | None = None
    #: whether weights are cast in a step's first micro-batch alone, and kept for the others
    casts_weights_once: bool = False
    #: whether what products in fp8 read of weights is gathered in fp8 over data ranks
    gathers_fp8: bool = False
    #: bytes moved to cast one such element to four bits; None: as to fp8
    fp4_cast_bytes: float | None = None
    #: whether a run's steps are each one CUDA graph, which launches nothing from the host
    captured: bool = False
    #: whether a run's exchanges between experts run beside another micro-batch
    exchanges_beside: bool = False
    #: of such exchanges the share that its compute hides
    exchange_overlap: float = 0.0
    #: whether an exchange puts rows in the order of experts and back, for which others have kernels
    permutes_in_exchange: bool = False
    #: whether a run's products are of four bits
    casts_four_bits: bool = False
    #: whether a run scales each row of fp8 operands by itself, where a tensor has one scale otherwise: what
    #: its ranks exchange stays in bf16
    scales_rows: bool = False
    #: rate of such products over those of tensors with one scale
    scaled_rows_factor: float = 1.0
    #: whether tp ranks send a part each of what crosses between pipeline stages, and gather it behind
    scatters_sends: bool = False
    #: whether what sequence parallelism divides crosses between pipeline stages as it is, and is not put
    #: together for that
    crosses_divided: bool = False
    #: whether operators of one graph gather sharded parameters and reduce their gradients, in the stream
    #: that computes: each for what reads it, so that none is there while a loss runs. Else FSDP2 does, the
    #: memory of whose streams serves nothing else, and whose root stays gathered
    gathers_in_graph: bool = False
    #: whether its AdamW is one kernel, without a temporary copy; or not even in time (``cost.updates``)
    steps_in_one_kernel: bool = False
    steps_by_operation: bool = False
    #: whether gradients are copied to fp32 weight by weight, to be added to those of micro-batches before;
    #: not under fp16-mixed where ``fp16_gradient_bytes`` says that those are not kept in fp32
    copies_gradients: bool = False
    #: whether embedding and head are FSDP2 units of their own, and nothing is the root's
    ends_apart: bool = False
    #: whether the experts of a block, where ep divides them, are an FSDP2 unit of their own inside of the
    #: block's, which is gathered, prefetched and reduced by itself; nothing else prefetches it
    experts_apart: bool = False
    #: whether a stream of its own casts a unit's gradients to the format of their reduction, as of FSDP1
    casts_gradients_aside: bool = False
    #: tensors of the logits' size that a loss makes more where tp ranks compute it together
    parallel_loss_tensors: int = 1
    #: kernels launched for each grouped product and expert that a rank holds, forward; 0: one for all
    launches_per_expert: float = 0.0
    #: traffic of elementwise kernels on rows that are routed to experts, over elementwise_factor's
    routed_traffic_factor: float = 1.0
    #: whether products that give gradients of weights add to those of micro-batches before
    adds_gradients: bool = False
    #: kernels launched, or as much of the processor's time, for a collective of tensor parallelism
    launches_per_collective: float = 0.0
    attention: Attention = Attention.SECOND
    #: whether the parameters that it divides are DTensors
    dtensors: bool = False
    #: whether its pipelines can compute the gradients of weights apart from those of inputs
    splits_backward: bool = False
    #: launches of a backward in these two parts over those of a whole one, and further ones for each block
    #: of the stage: each weight's part looks through the graph of all
    split_launches: float = 1.0
    split_launches_per_block: float = 0.0
    #: whether collectives on activations that recompute repeats take time of their own
    sends_again: bool = False
    #: whether gradients of keys and values go around the ranks of context parallelism in fp32, one after
    #: the other, where others reduce-scatter them
    passes_gradients: bool = False
    #: whether convolutional networks have their channels last under mixed precision
    channels_last: bool = False
    #: rate of products grouped by experts over that of others
    grouped_factor: float = 1.0
    #: rate of its matrix products, and of its attention kernels, over the device's
    matmul_factor: float = 1.0
    attention_factor: float = 1.0
    #: rate of both on a device over what they say, by the device's name; of others 1
    device_rates: tuple[tuple[str, float], ...] = ()
    #: tensor parallelism divides experts where ep is 1; else each tp rank has them whole
    divides_experts: bool = True
    #: vocabularies are padded until tp divides them; else tables and logits are whole where it does not
    pads_vocabulary: bool = True
    #: bytes of one gradient element under fp16-mixed, where they are others; None: the same
    fp16_gradient_bytes: int | None = None
    #: context_bytes under fp16-mixed, where an optimizer of its own has buckets; None: the same
    fp16_context_bytes: int | None = None
    #: constants that were fitted to published runs, by their names in parastrat.measured.constants
    fitted: tuple[str, ...] = ()
    #: whether one rate of each device was too
    fits_device_rates: bool = False

    def rate_on(self, device: str) -> float:
        """Return how fast products and attention are on a device, over what its profile and ours say."""
        return dict(self.device_rates).get(device, 1.0)

    @property
    def cast_bytes(self) -> float:
        """Bytes moved to cast one element of a product's input, weights or output's gradient."""
        four = self.fp4_cast_bytes if self.casts_four_bits else None
        return self.fp8_cast_bytes if four is None else four
