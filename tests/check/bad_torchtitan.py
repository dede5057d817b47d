"""A good configuration of torchtitan's, and what each mistake in it must be called."""

from __future__ import annotations

from check.bad_configs import Bad

TORCHTITAN = """\
[job]
description = "70B on eight nodes"

[model]
name = "llama3"
flavor = "70B"
hf_assets_path = "./assets/hf/Llama-3.1-70B"
converters = ["float8"]

[optimizer]
name = "AdamW"
lr = 1.5e-4

[lr_scheduler]
warmup_steps = 200

[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 1000

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true

[checkpoint]
enable = true
keep_latest_k = 3

[activation_checkpoint]
mode = "full"

[compile]
enable = true
components = ["model", "loss"]

[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
filter_fqns = ["output"]
"""
EXPERTS = """\
[model]
name = "llama4"
flavor = "17bx16e"

[training]
local_batch_size = 8
seq_len = 4096

[parallelism]
data_parallel_shard_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
expert_parallel_degree = 4
expert_tensor_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def _in(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)


def _bad(code: str, what: str, old: str, new: str, text: str = TORCHTITAN) -> Bad:
    return Bad(code=code, what=what, text=_in(text, old, new), suffix=".toml")


DEGREE = "tensor_parallel_degree = 8"
SHARD = "data_parallel_shard_degree = -1"

BAD_TORCHTITAN: tuple[Bad, ...] = (
    _bad("PS600", "cut off", "components = [", "components = [["),
    _bad("PS601", "misspelt", "tensor_parallel_degree", "tensor_paralel_degree"),
    _bad("PS601", "misspelt table", "[activation_checkpoint]", "[activation_checkpointing]"),
    _bad("PS601", "key of another table", "seq_len = 8192", "seq_len = 8192\nexpert_parallel_degree = 8"),
    _bad("PS602", "text for a number", DEGREE, 'tensor_parallel_degree = "8"'),
    _bad("PS602", "degree of none", DEGREE, "tensor_parallel_degree = 0"),
    _bad("PS602", "no such mode", 'mode = "full"', 'mode = "partial"'),
    _bad("PS602", "no such optimizer", '"AdamW"', '"Lion"'),
    _bad("PS602", "text for a list", 'converters = ["float8"]', 'converters = "float8"'),
    _bad("PS602", "no such schedule", '"Interleaved1F1B"', '"Interleaved"', EXPERTS),
    _bad("PS608", "renamed in 0.1", "local_batch_size", "batch_size"),
    _bad("PS608", "renamed table", "[quantize.linear.float8]", "[float8]"),
    _bad("PS690", "no shards", SHARD, "data_parallel_shard_degree = 0"),
    _bad(
        "PS690",
        "experts' own tensor degree",
        "expert_tensor_parallel_degree = 1",
        "expert_tensor_parallel_degree = 2",
        EXPERTS,
    ),
    _bad(
        "PS690",
        "experts divide nothing",
        "expert_parallel_degree = 4",
        "expert_parallel_degree = 8",
        EXPERTS,
    ),
    _bad("PS691", "global batch", "steps = 1000", "steps = 1000\nglobal_batch_size = 100"),
    _bad("PS691", "no batch", "steps = 1000", "steps = 1000\nglobal_batch_size = 0"),
    _bad("PS691", "micro-batch", "microbatch_size = 2", "microbatch_size = 3", EXPERTS),
    _bad("PS692", "length", "seq_len = 8192", "seq_len = 8200"),
    _bad(
        "PS693",
        "DDP beside tp",
        f"data_parallel_replicate_degree = 1\n{SHARD}",
        "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1",
    ),
    _bad("PS693", "async tp of an eager model", "enable = true\ncomponents", "enable = false\ncomponents"),
    _bad("PS693", "async tp of a compiled loss", '"model", "loss"', '"loss"'),
    _bad("PS693", "budget of an eager model", '"selective"', '"memory_budget"', EXPERTS),
    _bad(
        "PS693",
        "optimizer within a pipeline's backward",
        "[training]",
        "[optimizer]\nearly_step_in_backward = true\n\n[training]",
        EXPERTS,
    ),
    _bad("PS693", "one checkpoint", "keep_latest_k = 3", "keep_latest_k = 1"),
    _bad("PS693", "every other operator", '"op"', '"every"', EXPERTS),
    _bad("PS693", "no pipelines", '"llama4"\nflavor = "17bx16e"', '"qwen3"\nflavor = "30B-A3B"', EXPERTS),
    _bad("PS693", "the tokenizer's file", "Llama-3.1-70B", "tokenizer.model"),
    _bad("PS693", "recipe with fp8 gathers", "filter_fqns", 'recipe_name = "rowwise"\nfilter_fqns'),
    _bad("PS694", "no converter", 'converters = ["float8"]\n', ""),
    _bad(
        "PS694",
        "no mixed precision",
        "data_parallel_shard_degree = 4",
        "data_parallel_shard_degree = 1",
        _in(EXPERTS, "expert_parallel_degree = 4\nexpert_tensor_parallel_degree = 1\n", ""),
    ),
    _bad("PS694", "only warm-up", "warmup_steps = 200", "warmup_steps = 2000"),
    # the advisor's own rules
    _bad(
        "PS701", "1F1B with too few", '"Interleaved1F1B"', '"1F1B"', _in(EXPERTS, "_size = 8", "_size = 2")
    ),
)
