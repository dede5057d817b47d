"""Files for DeepSpeed's and Megatron's plugins, and Megatron's own launches, with one mistake each."""

from __future__ import annotations

import json
from typing import Any

from check.bad_configs import Bad

FILLED: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "offload_param": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 10}},
}
WITH_FILE = """\
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config:
  deepspeed_config_file: ds.json
  zero3_init_flag: true
"""
MEGATRON = """\
distributed_type: MEGATRON_LM
num_processes: 16
megatron_lm_config:
  megatron_lm_tp_degree: 4
  megatron_lm_pp_degree: '2'
"""
PRETRAIN = """\
NODES=2
MODEL=(--num-layers 32 --num-attention-heads 32)
DEGREES="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
torchrun --nproc_per_node 8 --nnodes $NODES --node_rank $RANK --master_addr $HEAD pretrain_gpt.py \\
  "${MODEL[@]}" $DEGREES --micro-batch-size 2 --global-batch-size 64
"""


def _filled(what: str, code: str, **changes: Any) -> Bad:
    table = {key: value for key, value in {**FILLED, **changes}.items() if value is not None}
    return Bad(what=what, text=json.dumps(table, indent=2), suffix=".json", code=code)


def _changed(what: str, base: str, old: str, new: str, code: str) -> Bad:
    assert old in base
    suffix = ".sh" if base is PRETRAIN else ".yaml"
    return Bad(what=what, text=base.replace(old, new), suffix=suffix, code=code)


def _params(**changes: Any) -> dict[str, Any]:
    return {"type": "AdamW", "params": {"lr": 1e-4, **changes}}


PLUGINS = (
    _filled("auto of a bucket", "PS681", zero_optimization={"stage": 2, "allgather_bucket_size": "auto"}),
    _filled("auto of live parameters", "PS681", zero_optimization={"stage3_max_live_parameters": "auto"}),
    _filled("auto of the scale", "PS681", fp16={"enabled": "auto", "loss_scale": "auto"}, bf16=None),
    _filled("auto of the optimizer's kind", "PS681", optimizer={"type": "auto"}),
    _filled("auto of a param", "PS681", optimizer=_params(bias_correction="auto")),
    _filled("auto of the last step", "PS681", scheduler={"params": {"last_batch_iteration": "auto"}}),
    _filled("auto, no stage", "PS682", zero_optimization=None),
    _filled("no length", "PS683", scheduler={"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9}}),
    _filled("no length of a cosine", "PS683", scheduler={"type": "WarmupCosineLR"}),
    _filled("no lower rate", "PS683", scheduler={"type": "OneCycle", "params": {"cycle_max_lr": 0.1}}),
    _filled("rate in quotes", "PS684", optimizer=_params(lr="1e-4")),
    _filled("decay in quotes", "PS684", optimizer=_params(weight_decay="0.1")),
    _filled(
        "steps in quotes", "PS684", scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": "9"}}
    ),
    _changed("format twice", WITH_FILE, "num", "mixed_precision: bf16\nnum", "PS621"),
    _changed("path twice", WITH_FILE, "  zero3", "  offload_param_nvme_path: /nvme\n  zero3", "PS621"),
    _changed("degrees of no use", MEGATRON, "MEGATRON_LM", "MULTI_GPU", "PS622"),
    _changed("processes of no replica", MEGATRON, "processes: 16", "processes: 12", "PS686"),
    _changed("degree that does not divide", MEGATRON, "'2'", "'3'", "PS686"),
    _changed("more ranks than processes", PRETRAIN, "parallel-size 2", "parallel-size 8", "PS687"),
    _changed("degree of no divisor", PRETRAIN, "parallel-size 2", "parallel-size 3", "PS687"),
    _changed("heads", PRETRAIN, "heads 32", "heads 30", "PS201"),
    _changed("batch", PRETRAIN, "batch-size 64", "batch-size 62", "PS687"),
)
GOOD_PLUGINS = {
    ".json": (
        json.dumps(FILLED),
        json.dumps({**FILLED, "zero_optimization": None, "autotuning": {"enabled": True}}),
        json.dumps({**FILLED, "steps_per_print": "auto", "scheduler": {"type": "WarmupLR"}}),
        json.dumps({**FILLED, "zero_optimization": {"stage": 2, "zenflow": {"select_interval": "auto"}}}),
    ),
    ".yaml": (
        WITH_FILE,
        MEGATRON,
        MEGATRON.replace("16", "-1"),
        MEGATRON.replace("num_processes: 16\n", ""),
        "distributed_type: MULTI_GPU\nnum_processes: 2\nmegatron_lm_config: {}\n",
    ),
    ".sh": (
        PRETRAIN,
        PRETRAIN.replace("parallel-size 2", "parallel-size $PP"),
        PRETRAIN.replace("NODES=2", "NODES=$1").replace("size 64", "size 63"),
        PRETRAIN.replace("parallel-size 2", "parallel-size 3").replace("size 64", "size 64 $MORE"),
        PRETRAIN.replace("size 64", "size 62 --rampup-batch-size 16 16 9999"),
        PRETRAIN.replace("$DEGREES", ""),
    ),
}
