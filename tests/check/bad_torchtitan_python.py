"""Good configurations of torchtitan's in Python, and what each mistake in them must be called."""

from __future__ import annotations

from check.bad_configs import Bad

_IMPORTS = """\
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
"""
WHOLE = (
    _IMPORTS
    + """\
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

LENGTH = 8192


def llama3_70b() -> Trainer.Config:
    model_spec = model_registry("70B")
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))
        ),
        model_spec=model_spec,
        optimizer=default_adamw(lr=1.5e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=200, decay_type="cosine"),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * LENGTH,
            num_tokens_per_train_step=256 * LENGTH,
            max_context_length=LENGTH,
            steps=1000,
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, data_parallel_shard_degree=8),
        checkpoint=CheckpointManager.Config(enable=True, interval=500, keep_latest_k=3),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),
        debug=DebugConfig(seed=7),
    )


def llama3_70b_cp4() -> Trainer.Config:
    config = llama3_70b()
    config.parallelism.context_parallel_degree = 4
    config.parallelism.data_parallel_shard_degree = 2
    config.training.steps = 500
    return config
"""
)
STAGES = (
    _IMPORTS
    + """\
from torchtitan.models.deepseek_v3 import model_registry
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_16b
from torchtitan.trainer import Trainer


def staged() -> Trainer.Config:
    config = deepseek_v3_16b()
    config.model_spec = model_registry("16B", attn_backend="flex")
    config.parallelism = ParallelismConfig(
        data_parallel_shard_degree=4,
        tensor_parallel_degree=2,
        expert_parallel_degree=8,
        pipeline_parallel_degree=2,
        pipeline_parallel_schedule="Interleaved1F1B",
        num_pp_microbatches=8,
        module_fqns_per_model_part=[["tok_embeddings"], ["layers.0"], ["layers.1"], ["norm", "lm_head"]],
    )
    config.training = TrainingConfig(
        num_tokens_per_microbatch_per_dp_rank=4096,
        num_tokens_per_train_step=4 * 8 * 4096,
        max_context_length=4096,
        disable_cuda_graphs=True,
    )
    config.activation_checkpoint = SelectiveAC.Config()
    config.compile = CompileConfig(enable=True)
    return config
"""
)


def _bad(what: str, base: str, old: str, new: str, code: str) -> Bad:
    assert old in base, what
    return Bad(what=f"python: {what}", text=base.replace(old, new), suffix=".py", code=code)


_TP, _CP = "tensor_parallel_degree=8", "config.parallelism.context_parallel_degree = 4"
_AC, _STEPS = "activation_checkpoint=FullAC.Config()", "config.training.steps = 500"
_SEED = "debug=DebugConfig(seed=7)"
_STEP_TOKENS = "num_tokens_per_train_step=256 * LENGTH"
_GRAPHS = "        disable_cuda_graphs=True,\n"
BAD_TORCHTITAN_PYTHON = (
    _bad("cut off", WHOLE, "def llama3_70b_cp4()", "def llama3_70b_cp4(", "PS600"),
    _bad("a misspelt keyword", WHOLE, _TP, "tensor_paralel_degree=8", "PS601"),
    _bad("a misspelt attribute", WHOLE, _CP, "config.parallelism.context_paralel_degree = 4", "PS601"),
    _bad(
        "an attribute of no section", WHOLE, _CP, "config.paralelism.context_parallel_degree = 4", "PS601"
    ),
    _bad("a keyword of another class", WHOLE, _SEED, "debug=DebugConfig(steps=7)", "PS601"),
    _bad("a keyword of Trainer.Config", WHOLE, _SEED, "debugging=DebugConfig(seed=7)", "PS601"),
    _bad("of a shipped baseline", STAGES, "config.compile =", "config.compilation =", "PS601"),
    _bad("a number in quotes", WHOLE, _TP, 'tensor_parallel_degree="8"', "PS602"),
    _bad("a constant of another type", WHOLE, "LENGTH = 8192", 'LENGTH = "8192"', "PS602"),
    _bad("half a rank", WHOLE, _TP, "tensor_parallel_degree=16 / 2", "PS602"),
    _bad("no such choice", WHOLE, '"cosine"', '"cosin"', "PS602"),
    _bad("no such schedule", STAGES, '"Interleaved1F1B"', '"Interleaved"', "PS602"),
    _bad("an attribute of another type", WHOLE, _STEPS, 'config.training.steps = "500"', "PS602"),
    _bad("a switch as text", WHOLE, "CompileConfig(enable=True,", 'CompileConfig(enable="yes",', "PS602"),
    _bad(
        "positional", WHOLE, "ParallelismConfig(tensor_parallel_degree=8,", "ParallelismConfig(8,", "PS602"
    ),
    _bad("samples in place of tokens", WHOLE, _STEPS, "config.training.local_batch_size = 2", "PS608"),
    _bad("a length of earlier versions", WHOLE, "max_context_length=", "seq_len=", "PS608"),
    _bad(
        "an earlier length, read", WHOLE, _STEPS, "config.training.steps = config.training.seq_len", "PS608"
    ),
    _bad("a mode of recompute", WHOLE, _STEPS, 'config.activation_checkpoint.mode = "full"', "PS608"),
    _bad(
        "a class of earlier versions",
        WHOLE.replace("import CompileConfig", "import ActivationCheckpointConfig, CompileConfig"),
        _AC,
        'activation_checkpoint=ActivationCheckpointConfig(mode="full")',
        "PS608",
    ),
    _bad("async tp in its former place", WHOLE, _TP, f"{_TP}, enable_async_tensor_parallel=True", "PS608"),
    _bad("no tensor-parallel rank", WHOLE, _TP, "tensor_parallel_degree=0", "PS553"),
    _bad("shards are -2", WHOLE, "shard_degree=8", "shard_degree=-2", "PS553"),
    _bad("experts do not divide", STAGES, "expert_parallel_degree=8", "expert_parallel_degree=3", "PS553"),
    _bad("tokens do not divide over cp", WHOLE, "LENGTH = 8192", "LENGTH = 8200", "PS554"),
    _bad("cp leaves a rest", WHOLE, _CP, "config.parallelism.context_parallel_degree = 3", "PS554"),
    _bad("a step is no round", WHOLE, _STEP_TOKENS, "num_tokens_per_train_step=250 * LENGTH", "PS554"),
    _bad("a step is no round of stages", STAGES, "=4 * 8 * 4096", "=4 * 4 * 4096", "PS554"),
    _bad("no tokens", WHOLE, "rank=2 * LENGTH", "rank=0", "PS554"),
    _bad("no micro-batches", STAGES, "num_pp_microbatches=8", "num_pp_microbatches=0", "PS554"),
    _bad(
        "graphs of a pipeline",
        STAGES.replace("expert_parallel_degree=8", "expert_parallel_degree=1"),
        _GRAPHS,
        "",
        "PS555",
    ),
    _bad(
        "graphs of experts",
        STAGES.replace("pipeline_parallel_degree=2", "pipeline_parallel_degree=1"),
        _GRAPHS,
        "",
        "PS555",
    ),
    _bad("async tp, nothing compiled", WHOLE, "(enable=True, enable_async", "(enable_async", "PS556"),
    _bad(
        "async tp, the loss compiled", WHOLE, "(enable=True,", '(enable=True, components=["loss"],', "PS556"
    ),
    _bad(
        "a memory budget, nothing compiled",
        WHOLE.replace("compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),", ""),
        _AC,
        "activation_checkpoint=MemoryBudgetAC.Config(memory_budget=0.3)",
        "PS556",
    ),
    _bad(
        "cp of another backend",
        WHOLE,
        _STEPS,
        'config.parallelism.spmd_backend = "partial_dtensor"',
        "PS556",
    ),
    _bad(
        "type checks of a pipeline",
        STAGES,
        "    return",
        "    config.debug = DebugConfig(spmd_typechecking=True)\n    return",
        "PS556",
    ),
    _bad("batch-invariant", WHOLE, _SEED, "debug=DebugConfig(batch_invariant=True)", "PS556"),
    _bad("five parts on two ranks", STAGES, '["layers.1"], ', '["layers.1"], ["layers.2"], ', "PS557"),
    _bad(
        "a V of one part each",
        STAGES.replace('"Interleaved1F1B"', '"ZBVZeroBubble"')
        .replace("SelectiveAC.Config()", "None")
        .replace("CompileConfig(enable=True)", "CompileConfig()"),
        '["layers.0"], ["layers.1"], ',
        "",
        "PS557",
    ),
    _bad("a base of schedules", STAGES, '"Interleaved1F1B"', '"PipelineScheduleSingle"', "PS557"),
    _bad("one checkpoint kept", WHOLE, "keep_latest_k=3", "keep_latest_k=1", "PS558"),
    _bad("a checkpoint every 0 steps", WHOLE, "interval=500", "interval=0", "PS558"),
    _bad("half a path", WHOLE, "interval=500", 'initial_load_path="outputs/x"', "PS558"),
    _bad(
        "more than a model for others",
        WHOLE,
        "interval=500",
        "last_save_in_hf=True, last_save_model_only=False",
        "PS558",
    ),
    _bad("micro-batches of no pipeline", WHOLE, _TP, f"{_TP}, num_pp_microbatches=8", "PS559"),
    _bad("a warm-up beyond the end", WHOLE, "warmup_steps=200", "warmup_steps=2000", "PS559"),
    _bad(
        "micro-batches of no round",
        STAGES.replace("=4 * 8 * 4096", "=-1"),
        "num_pp_microbatches=8",
        "num_pp_microbatches=5",
        "PS702",
    ),
)
#: nothing is wrong with these, as far as anybody can tell without running them
GOOD_TORCHTITAN_PYTHON = (
    WHOLE,
    STAGES,
    # branches, loops and other functions leave open what they touch
    WHOLE.replace(_CP, "if input():\n        config.parallelism.context_parallel_degree = 3"),
    WHOLE.replace(_CP, "for n in (3, 4):\n        config.parallelism.context_parallel_degree = n"),
    WHOLE.replace(
        "    return config", "    config.training.steps = 3\n    change(config)\n    return config"
    ).replace(_CP, "import os\n    config.parallelism.context_parallel_degree = int(os.environ['CP'])"),
    WHOLE.replace(
        _CP, "from mine import change\n    change(config)\n    config.training.max_context_length = 8200"
    ),
    WHOLE.replace(_TP, "tensor_parallel_degree=degrees()[0], **more()"),
    WHOLE.replace(_CP, "parts = config.compile.components\n    parts.append('x')"),
    WHOLE.replace("import CompileConfig", "import ActivationCheckpointConfig, CompileConfig"),
    # sections of one's own
    WHOLE.replace("import Trainer\n", "import Trainer\nfrom mine import MyCompile\n").replace(
        _CP, "config.compile = MyCompile(enable=True)\n    config.compile.my_pass = 3"
    ),
    WHOLE.replace(
        _CP,
        "from dataclasses import replace\n"
        "    config.parallelism = replace(config.parallelism, context_parallel_degree=4)",
    ),
    # rounds and parts that come out
    WHOLE.replace("            num_tokens_per_train_step=256 * LENGTH,\n", ""),
    STAGES.replace("=4 * 8 * 4096", "=-1"),
    STAGES.replace('["layers.1"], ', '["layers.1"], ["layers.2"], ["layers.3"], '),
    STAGES.replace('"Interleaved1F1B"', '"ZBVZeroBubble"')
    .replace("SelectiveAC.Config()", "None")
    .replace("CompileConfig(enable=True)", "CompileConfig()"),
    STAGES.replace("pipeline_parallel_degree=2", "pipeline_parallel_degree=int(input())"),
    STAGES.replace(
        "    config.parallelism =",
        "    parts = [['layers.0'], ['x'], ['y']]\n    parts.append(['z'])\n    config.parallelism =",
    ).replace('[["tok_embeddings"], ["layers.0"], ["layers.1"], ["norm", "lm_head"]]', "parts"),
    # a policy, and another's field
    WHOLE.replace(
        _STEPS,
        "config.activation_checkpoint = MemoryBudgetAC.Config()\n"
        "    config.activation_checkpoint.memory_budget = 0.4",
    ),
    # checkpoints
    WHOLE.replace("interval=500", 'last_save_in_hf=True, initial_load_path="/lustre/x"'),
    WHOLE.replace("interval=500", 'last_save_model_only=False, initial_load_path="s3://bucket/x"'),
    # arithmetic, and defaults of parameters
    WHOLE.replace("def llama3_70b()", "def llama3_70b(tp: int = 2 ** 3, *, steps=10)").replace(
        _TP, "tensor_parallel_degree=tp"
    ),
    WHOLE.replace('"cosine"', "kind()").replace("warmup_steps=200", "warmup_steps=LENGTH // 100"),
    STAGES.replace(
        'model_registry("16B", attn_backend="flex")',
        'model_registry("16B", moe_comm_backend="minimal_async_ep")',
    )
    .replace("pipeline_parallel_degree=2", "pipeline_parallel_degree=1")
    .replace("num_pp_microbatches=8,", "")
    .replace(_GRAPHS, ""),
    STAGES.replace(
        "config.activation_checkpoint = SelectiveAC.Config()", "config.activation_checkpoint = None"
    ),
    STAGES.replace('schedule="Interleaved1F1B"', 'schedule="interleaved1f1b"'),
)
