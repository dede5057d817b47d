"""What a preset or a config file says of a transformer, before any sequence length is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parastrat.model import Family
from parastrat.sources.windows import Window


class Norm(StrEnum):
    RMS = "rms"
    #: its weight multiplies in fp32 (Gemma, OLMo 2, gpt-oss)
    RMS_FP32 = "rms-fp32"
    LAYER = "layer"
    #: a layer norm with a weight alone (MPT), and one that runs kernel by kernel in eager mode (Command R)
    UNBIASED = "layer-unbiased"
    COMPOSITE = "layer-composite"
    #: a norm without parameters (OLMo)
    BARE = "bare"

    @property
    def weights(self) -> int:
        """Parameters for each element of its width."""
        return {Norm.LAYER: 2, Norm.BARE: 0}.get(self, 1)

    @property
    def multiplies_in_fp32(self) -> bool:
        """Return whether its weight does, kernel by kernel."""
        return self in (Norm.RMS_FP32, Norm.COMPOSITE)


class QkNorm(StrEnum):
    """Norms on queries and keys."""

    #: of each head, all with the same weights (Qwen3)
    HEAD = "head"
    #: of all heads together (OLMo 2)
    WIDTH = "width"


class Scores(StrEnum):
    """Attention of transformers without a kernel that spares the scores of all pairs, by what it adds."""

    #: nothing, or a bias: a softmax in fp32 (BLOOM)
    PLAIN = "plain"
    #: a tanh that caps them (Gemma 2)
    CAPPED = "capped"
    #: a learned logit per head beside them (gpt-oss), or one that scales what attention gives by their sum
    SINKS = "sinks"
    SCALED = "scaled"
    #: queries and keys are multiplied in fp32 (GPT-Neo)
    FP32 = "fp32"
    #: scores are no less than the least number of their format (XGLM)
    CLAMPED = "clamped"


class LayerKind(StrEnum):
    """The one part that a layer of a hybrid has, by the letters of NVIDIA's patterns."""

    SCAN = "M"
    ATTENTION = "*"
    FEED_FORWARD = "-"
    EXPERTS = "E"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Mamba-2 layers (Dao and Gu, arXiv:2405.21060, section 7): a gated scan over the sequence."""

    heads: int
    #: of each head: the width of its input, and what it keeps of each element of that
    head_dim: int
    state: int
    #: of heads that have their B and C in common
    groups: int
    #: tokens that are computed at once
    chunk: int
    #: tokens that the convolution before the scan sees
    window: int = 4
    #: biases in the projections; in the convolution
    bias: bool = False
    conv_bias: bool = True

    @property
    def width(self) -> int:
        """Elements of all heads' inputs."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: those inputs, B and C."""
        return self.width + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Columns of the first projection: the gate, what is convolved, and a step's length a head."""
        return self.width + self.convolved + self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokens:
    """A module that predicts further tokens (DeepSeek-V3, arXiv:2412.19437, section 2.2)."""

    #: its layers, in the letters of a hybrid's
    pattern: str
    #: times that it runs one after the other with the same weights, each a token further
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): low-rank q, k and v."""

    #: 0 where queries are projected at once (DeepSeek-V2-Lite)
    q_rank: int
    kv_rank: int
    #: per head: without and with rotary position, and of the values
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward layer."""

    count: int
    top_k: int
    ffn: int
    #: experts that every token passes, as one feed-forward of this width together; 0 for none
    shared_ffn: int = 0
    #: first layers that keep a dense feed-forward
    dense_layers: int = 0
    #: of the others every so many-th layer has experts: 2 is layers 1, 3, 5 counted from 0
    period: int = 1
    #: a bias per expert in the router
    router_bias: bool = False
    #: transformers' router reads a copy of its input in fp32 (Nemotron-H, DeepSeek)
    fp32_router: bool = False
    #: what experts give back is weighed in fp32, as transformers' router gives the weights (Mixtral)
    fp32_weights: bool = False
    #: biases in the experts
    bias: bool = False
    #: a gate on the shared experts, one number a token (Qwen2-MoE)
    shared_gate: bool = False
    #: shared experts run before the router, without a gate as well (Hunyuan)
    shared_first: bool = False
    #: transformers runs every expert on every token, and scales by zero what was not routed (Llama 4)
    every_token: bool = False
    #: width to which tokens are projected for the experts, and from which back; 0: that of the model
    latent: int = 0
    #: between their products stands a chain of kernels: gates are clamped, and one is added (gpt-oss)
    composite_activation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The input of a vision transformer."""

    size: int
    patch: int
    channels: int
    classes: int

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.size // self.patch) ** 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """A speech encoder's input: a spectrogram of one length (Whisper, arXiv:2212.04356, section 2.2)."""

    #: mel bands
    channels: int
    frames: int

    @property
    def tokens(self) -> int:
        """Positions of the encoder: the second of two convolutions strides by two."""
        return self.frames // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A transformer of one of the families with a closed form."""

    name: str
    family: Family
    layers: int
    hidden: int
    #: 0 without attention
    heads: int
    ffn: int
    vocab: int
    kv_heads: int
    head_dim: int
    norm: Norm
    #: the feed-forward multiplies a gate (SwiGLU, GeGLU)
    gated: bool
    tied: bool
    #: biases on q, k, v; on the attention's output; in the feed-forward
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    #: q, k and v come from one matrix (GPT-2), and gate and up if there are these; or these alone (GLM)
    fused_qkv: bool = False
    fused_gate: bool = False
    #: the activation is a chain of elementwise kernels in eager mode (GPT-2's tanh GELU)
    composite_activation: bool = False
    #: the activation is a ReLU, whose output alone backward needs
    rectified: bool = False
    #: the activation is the square of a ReLU (Nemotron)
    squared: bool = False
    #: keys have a bias where queries and values have one; Whisper's have none
    key_bias: bool = True
    #: queries are copied to lie head by head, as attention then puts out, which is copied back: scaled ones
    #: (Whisper), and those of which only a part of each head is rotated, to which the rest is joined
    heads_first: bool = False
    #: values are a part of the fused projection as it is, which stays whole beside rotated queries and keys
    values_in_projection: bool = False
    #: transformers gives its attention a mask of all pairs, for which keys and values are repeated (Falcon)
    masked: bool = False
    qk_norm: QkNorm | None = None
    #: a learned logit per head that takes up attention (gpt-oss)
    sinks: bool = False
    #: groups of heads in which one projection has queries, keys and values, which tp must divide (CodeGen)
    head_groups: int | None = None
    #: None: attention runs in one kernel. Hand-fused stacks have one for all of these
    scores: Scores | None = None
    #: layers count positions each in a way of their own: some none, others by chunks (Llama 4)
    own_positions: bool = False
    #: norms in a layer: 1 where attention and feed-forward share it (Falcon-7B), 4 with norms on the
    #: outputs as well (Gemma 2); cross-attention brings one more
    layer_norms: int = 2
    #: attention and feed-forward both read the block's input, each behind a norm of its own (GPT-NeoX)
    parallel: bool = False
    #: a norm behind the embedding (BLOOM); encoders have one in any case
    embedding_norm: bool = False
    #: a norm before the logits
    final_norm: bool = True
    #: a bias per token of the vocabulary on the logits
    head_bias: bool = False
    #: a tanh caps the logits (Gemma 2)
    capped_logits: bool = False
    #: None: every query sees all keys before it
    window: Window | None = None
    #: rows of a learned position table; 0 for rotary or relative positions
    positions: int = 0
    #: queries and keys are rotated by their place where no table says it
    rotary: bool = True
    #: the residual stream is in fp32 whatever products compute in (Mamba-2)
    fp32_stream: bool = False
    #: rows of a segment table (BERT)
    segments: int = 0
    #: a masked-language-model head: a matrix, its bias, a norm, and a bias per token of the vocabulary
    transform_head: bool = False
    #: a pooler and a two-way classifier over it (BERT's next-sentence head)
    pooler: bool = False
    #: buckets of a relative position table for each stack (T5)
    relative_buckets: int = 0
    #: layers of the encoder beside ``layers`` decoder layers (T5, Whisper)
    encoder_layers: int = 0
    latent: LatentAttention | None = None
    experts: Experts | None = None
    #: of a hybrid the one part of each layer, a letter each (``LayerKind``); else each layer has attention
    #: and a feed-forward
    pattern: str = ""
    state_space: StateSpace | None = None
    next_tokens: NextTokens | None = None
    image: Image | None = None
    #: what the encoder hears; None where it reads tokens
    audio: Audio | None = None
    dropout: bool = False
    #: as well of what the feed-forward's activation gives, and behind each stack's last norm (T5)
    inner_dropout: bool = False
    final_dropout: bool = False
    max_sequence_length: int | None = None
    source: str = ""

    @property
    def fuses_gate(self) -> bool:
        """Return whether gate and up are one product."""
        return self.gated and (self.fused_qkv or self.fused_gate)

    @property
    def turns(self) -> bool:
        """Return whether queries and keys are rotated: nothing else tells their places."""
        return self.rotary and not (self.positions or self.relative_buckets or self.image)
