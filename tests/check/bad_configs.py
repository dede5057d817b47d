"""Good configurations, and what each mistake in them must be called."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

FSDP2 = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
"""
MESH = (
    FSDP2
    + """\
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
"""
)
FSDP1 = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_cpu_ram_efficient_loading: true
  fsdp_sync_module_states: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
"""
ACCELERATED_ZERO = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 2
"""
ZERO: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8},
}
SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
export OMP_NUM_THREADS=8
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes 2 --nproc-per-node 8 \\
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" train.py --nodes 3
"""
#: what is allowed, though it looks like a mistake
LENIENT = {
    ".yaml": (
        FSDP2.replace("  fsdp_", "  "),  # prefixes left out
        MESH.replace("dp_replicate_size: 2", "dp_replicate_size: 1")
        .replace("dp_shard_size: 4", "dp_shard_size: 1")
        .replace("tp_size: 2", "tp_size: 1"),
        MESH.replace("tp_size: 2", "sp_size: 4"),
        FSDP2 + "  fsdp_activation_checkpointing_offload: true\n",
        FSDP1.replace("FULL_SHARD", "full_shard").replace("SHARDED_STATE", "sharded_state"),
        "distributed_type: NO\nnum_processes: 1\nmixed_precision: 'no'\n",
        "distributed_type: FSDP\nnum_processes: 1\ngpu_ids: '0'\nfsdp_config: {fsdp_version: 2}\n",
        (
            "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 2\n"
            "gpu_ids: '0'\nmain_process_ip: host\n"
        ),
        # what accelerate makes numbers and switches of itself
        FSDP1
        + "  fsdp_offload_params: 'false'\n  fsdp_use_orig_params: 'true'\n  fsdp_forward_prefetch: 0\n",
        FSDP2.replace("version: 2", "version: '2'").replace("rank: 0", "rank: '0'"),
        FSDP1.replace("num_processes: 8", "num_processes: '8'"),
        FSDP1.replace("loading: true", "loading: 'false'"),
        FSDP1.replace("loading: true", "loading: false").replace("states: true", "states: false"),
        FSDP2.replace("machine_rank: 0", "machine_rank: 1").replace("29500", "'29500'"),
        MESH.replace("_tp_size: 2", "_tp_size: '2'"),
        FSDP1 + "same_network: 'false'\n",
        FSDP1 + "rdzv_backend: static\nsame_network: true\nenable_cpu_affinity: false\n",
        FSDP2.replace("TRANSFORMER", "SIZE") + "  fsdp_min_num_params: '100000000'\n",
        ACCELERATED_ZERO.replace("steps: 2", "steps: auto"),
        ACCELERATED_ZERO.replace("steps: 2", "steps: '2'").replace("3", "'3'")
        + "  offload_param_device: CPU\n  zero3_init_flag: 'true'\n",
        "distributed_type: MULTI_GPU\nnum_processes: 4\ndynamo_backend: INDUCTOR\nfp16: true\n",
        (
            "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\nprofile: me\n"
            "ec2_instance_type: ml.p3.16xlarge\niam_role_name: role\n"
        ),
    ),
    ".json": (
        json.dumps({**ZERO, "_comment": "ours", "zero_optimization": True}),
        json.dumps({"bf16": {"enabled": True}, "elasticity": {"enabled": True}, "steps_per_print": 1}),
        json.dumps({**ZERO, "bf16": None, "fp16": {"enabled": True, "loss_scale": 0.5}}),
        json.dumps({"train_batch_size": 64, "bfloat16": {"enabled": True}, "fp16": {"enabled": False}}),
        json.dumps(
            {**ZERO, "tensorboard": {"enabled": True}, "wandb": {"enabled": True, "project": "mine"}}
        ),
        json.dumps({"train_batch_size": 64, "optimizer": {"type": "SGD"}}),
        json.dumps(
            {
                **ZERO,
                "aio": {"block_size": 1048576, "overlap_events": True},
                "flops_profiler": {"enabled": True, "output_file": None},
                "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
                "data_types": {"grad_accum_dtype": "fp32"},
                "checkpoint": {"tag_validation": "Warn", "parallel_write": {"pipeline_stage": True}},
                "zero_optimization": {"stage": 3, "leaf_module": {"classes": "Expert"}},
            }
        ),
        json.dumps({**ZERO, "optimizer": {"type": "adamw"}, "communication_data_type": "FP32"}),
    ),
    ".sbatch": (
        SCRIPT.replace("--nproc-per-node 8", "--nproc 8 -r 3 -t 3"),
        SCRIPT.replace("--nnodes 2 --nproc-per-node 8", "--nnodes=2 --nproc_per_n=8 --log-d logs"),
        # other launches are other launches: behind the job's, and where there is one node
        SCRIPT + "torchrun --standalone --nproc-per-node 8 evaluate.py\n",
        SCRIPT + "srun --nodes=1 torchrun --nnodes 1 --nproc-per-node 8 evaluate.py\n",
        SCRIPT.replace("srun ", "if true; then srun ") + "else torchrun --standalone train.py; fi\n",
        SCRIPT.replace("srun torchrun", "for H in $HOSTS; do ssh $H torchrun"),
        SCRIPT.replace("srun torchrun", "command -v torchrun; echo torchrun; srun torchrun"),
        SCRIPT.replace("srun torchrun", "srun -N2 torchrun"),
        SCRIPT.replace("#SBATCH --cpus-per-task=64", "#SBATCH -c64 -t 1:00:00  # an hour"),
        SCRIPT.replace("#SBATCH --cpus-per-task=64", "#SBATCH -c 64 --exclusive"),
        # what the shell holds is unknown: options, what starts it, where a function runs, a document
        SCRIPT.replace("--nnodes 2 --nproc-per-node 8 \\\n    --rdzv-backend c10d", '"${ARGS[@]}"').replace(
            ' --rdzv-endpoint "$HEAD:29500"', ""
        ),
        SCRIPT.replace("srun torchrun", "$SRUN torchrun"),
        SCRIPT.replace("srun torchrun", "run() {\ntorchrun") + "}\nexport -f run; srun bash -c run\n",
        SCRIPT.replace("srun torchrun", "cat > launch.sh <<'EOF'\ntorchrun") + "EOF\nsrun bash launch.sh\n",
        SCRIPT.replace("srun torchrun", "srun bash -c '\ncd run\ntorchrun") + "'\n",
        "#SBATCH --nodes=2\n#SBATCH --exclusive\nexport PET_NNODES=2\nsrun torchrun train.py\n",
        # one step for each node, other tasks than the job's, and one node of them
        SCRIPT.replace("srun torchrun", "srun --nodes=1 -w $NODE torchrun --node-rank=$I").replace(
            '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"', "--master-addr=$HEAD"
        ),
        SCRIPT.replace("per-node=1", "per-node=8").replace("srun", "srun --ntasks-per-node=1 -n 2"),
        SCRIPT + "torchrun --nproc-per-node 8 evaluate.py\n",
        SCRIPT.replace("--gpus-per-node=8", "--gres=gpu:8,craynetwork:1"),
        SCRIPT.replace("--gpus-per-node=8", "--gres=hpu:8"),
        # a launcher's name as another program's option
        SCRIPT
        + "srun axolotl train x.yaml --launcher torchrun -- --nproc_per_node=8\npkill -f torchrun -9\n",
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node 8 -r3"),
        SCRIPT.replace("--ntasks-per-node=1", "--ntasks=2"),
        SCRIPT.replace("--ntasks-per-node=1", "--ntasks=2 --ntasks-per-node=8"),
        SCRIPT.replace("--gpus-per-node=8", "--gpus=h100:16"),
        SCRIPT.replace("--gpus-per-node=8", "--gpus-per-task=8"),
        SCRIPT.replace("srun torchrun --nnodes 2", "srun -n 1 torchrun --nnodes 1"),
        SCRIPT.replace("srun torchrun", "srun --ntasks=$N torchrun"),
        SCRIPT.replace("per-node=1", "per-node=8").replace("srun torchrun", "srun $SRUN_ARGS torchrun"),
        SCRIPT.replace("srun torchrun --nnodes 2", "srun --label $SRUN_ARGS torchrun --nnodes 1"),
        SCRIPT.replace("srun torchrun --nnodes 2", "srun --nodes=$N torchrun --nnodes 1"),
        SCRIPT.replace("--ntasks-per-node=1", "--ntasks-per-node=8").replace("srun", "srun -n 2 -N 2"),
        # each task is a node to torchrun, with GPUs of its own
        SCRIPT.replace("-node=1", "-node=2")
        .replace("--gpus-per-node=8", "--gpus-per-task=4")
        .replace("--nnodes 2 --nproc-per-node 8", "--nnodes 4 --nproc-per-node 4"),
        # a remark ends with its line
        SCRIPT.replace("#SBATCH --cpus", "# cores \\\n#SBATCH --cpus"),
        # variables of network plugins, and of torch built for CUDA
        SCRIPT.replace(
            "OMP_NUM_THREADS=8", "NCCL_FASTRAK_USE_SNAP=1 NCCL_TUNER_CONFIG_PATH=/var/lib/tuner"
        ),
        SCRIPT.replace("OMP_NUM_THREADS=8", "TORCH_NCCL_USE_COMM_NONBLOCKING=1 NCCL_IBEXT_DISABLE=1"),
        # the batch shell runs on the first node, and asks it for its name
        SCRIPT.replace('"$HEAD:29500"', '"$(hostname):29500"'),
        SCRIPT.replace('"$HEAD:29500"', "$HOSTNAME:29500"),
        SCRIPT.replace("srun torchrun", 'srun bash -c "torchrun').replace(
            '"$HEAD:29500" train.py --nodes 3', '$(hostname -s):29500 train.py"'
        ),
        SCRIPT.replace("srun torchrun", "srun bash -c 'torchrun").replace(
            '"$HEAD:29500" train.py --nodes 3', "$SLURM_LAUNCH_NODE_IPADDR:29500 train.py'"
        ),
        # substitutions are one word, whatever stands in them
        SCRIPT.replace("--nnodes 2", "--nnodes=$(scontrol show hostnames $JOB | wc -l)").replace(
            '"$HEAD:29500"', "$(scontrol show hostnames $JOB | head -n 1):29500"
        ),
        SCRIPT.replace("8 \\", "$((2 * (3 + 1))) \\").replace("$HEAD", "$(f \0007\0 $(g h))"),
        # counts that only the shell knows, or torchrun itself
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node gpu"),
        SCRIPT.replace("--nnodes 2", "--nnodes 2:2"),
        SCRIPT.replace("--nnodes 2", "--nnodes ${NODES:-2}"),
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node $GPUS"),
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node auto").replace("c10d", "$RDZV"),
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node xpu").replace("c10d", "etcd-v2"),
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node cpu --monitor-interval 0.5"),
        # a backend's own name, and places to meet without a port or with one that the shell knows
        SCRIPT.replace("--nproc-per-node 8", "--nproc-per-node vendor_2"),
        SCRIPT.replace('"$HEAD:29500"', "[fe80::1]"),
        SCRIPT.replace('c10d --rdzv-endpoint "$HEAD:29500"', "mine --rdzv-endpoint mine://head"),
        SCRIPT.replace('"$HEAD:29500"', "$HEAD:${PORT}"),
        # numbers of the nodes that the shell knows
        SCRIPT.replace("srun torchrun", "srun bash -c 'torchrun").replace(
            '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" train.py --nodes 3',
            "--node-rank $SLURM_NODEID --master-addr $HEAD train.py'",
        ),
        SCRIPT.replace("--rdzv-backend c10d", "--node-rank $NODE_RANK"),
        SCRIPT.replace("--rdzv-backend c10d", "--node-rank ${NODE_RANK:-$SLURM_NODEID}"),
        SCRIPT.replace("srun torchrun", "NODE_RANK=$1\nsrun torchrun").replace(
            "--rdzv-backend c10d", "--node-rank $NODE_RANK"
        ),
        SCRIPT.replace("--rdzv-backend c10d", "$RANK_OPTION"),
    ),
    ".sh": (
        "python -m torch.distributed.run --nproc-per-node 8 train.py",
        # each in its own branch: the first node's needs no number
        (
            "if first; then\ntorchrun --nnodes 2 --nproc-per-node 8 --master-addr head train.py\n"
            "else\ntorchrun --nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr head train.py\nfi\n"
        ),
        "torchrun --nnodes 1 --nproc-per-node {gpus} --master-addr head train.py",
        "bash -lc 'torchrun --standalone --nproc-per-node 8 train.py'",
    ),
}
GOOD = {
    "FSDP2": FSDP2,
    "MESH": MESH,
    "FSDP1": FSDP1,
    "ACCELERATED_ZERO": ACCELERATED_ZERO,
    "ZERO": ZERO,
    "SCRIPT": SCRIPT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One mistake."""

    what: str
    text: str
    suffix: str
    code: str


def _yaml(what: str, base: str, old: str, new: str, code: str) -> Bad:
    assert old in base
    return Bad(what=what, text=base.replace(old, new), suffix=".yaml", code=code)


def _script(what: str, old: str, new: str, code: str) -> Bad:
    assert old in SCRIPT
    return Bad(what=what, text=SCRIPT.replace(old, new), suffix=".sbatch", code=code)


def _json(what: str, code: str, **changes: Any) -> Bad:
    table = {name: value for name, value in {**ZERO, **changes}.items() if value is not None}
    return Bad(what=what, text=json.dumps(table, indent=2), suffix=".json", code=code)


def _zero(what: str, code: str, **changes: Any) -> Bad:
    return _json(what, code, zero_optimization={**ZERO["zero_optimization"], **changes})


BAD = (
    _yaml("misspelt key", FSDP2, "num_machines", "num_machine", "PS601"),
    _yaml(
        "key of a section at the top", FSDP2, "fsdp_config:\n", "fsdp_version: 2\nfsdp_config:\n", "PS601"
    ),
    _yaml("misspelt key of FSDP", FSDP2, "fsdp_auto_wrap_policy", "fsdp_auto_wrap_polcy", "PS606"),
    _yaml("misspelt axis", MESH, "_tp_size", "_tp_siz", "PS606"),
    _yaml("text for a number", FSDP2, "num_processes: 16", "num_processes: '16'", "PS667"),
    _yaml("text for a switch", FSDP2, "fsdp_version: 2", "fsdp_version: two", "PS602"),
    _yaml("text for machines", FSDP2, "num_machines: 2", "num_machines: '2'", "PS667"),
    _yaml("text for a port", FSDP2, "29500", "'29500'", "PS667"),
    _yaml("text for an axis", MESH, "_tp_size: 2", "_cp_size: '2'", "PS667"),
    _yaml(
        "text for the processes of processors",
        FSDP1,
        "_processes: 8",
        "_processes: '8'\nuse_cpu: true",
        "PS667",
    ),
    Bad(
        what="text for one process",
        text="distributed_type: 'NO'\nnum_processes: '1'\n",
        suffix=".yaml",
        code="PS667",
    ),
    _yaml("no number in quotes", FSDP2, "num_processes: 16", "num_processes: 'many'", "PS602"),
    _yaml("no port in quotes", FSDP2, "29500", "'70000'", "PS602"),
    _yaml(
        "no debugging, in quotes", FSDP1, "num_processes: 8", "num_processes: 8\ndebug: 'false'", "PS668"
    ),
    _yaml("GPUs, in quotes", FSDP1, "num_processes: 8", "num_processes: 8\nuse_cpu: 'no'", "PS668"),
    _yaml("nothing sent, in quotes", FSDP1, "_module_states: true", "_module_states: 'false'", "PS668"),
    _yaml(
        "loading in quotes",
        FSDP1.replace("loading: true", "loading: 'false'"),
        "states: true",
        "states: false",
        "PS615",
    ),
    _yaml(
        "loading left out",
        FSDP1.replace("  fsdp_cpu_ram_efficient_loading: true\n", ""),
        "states: true",
        "states: false",
        "PS615",
    ),
    _yaml("rendezvous of the file", FSDP2, "_rank: 0", "_rank: 0\nrdzv_backend: c10d", "PS672"),
    _yaml("affinity of the file", FSDP2, "_rank: 0", "_rank: 0\nenable_cpu_affinity: true", "PS672"),
    _yaml("kind that is a number", FSDP2, "distributed_type: FSDP", "distributed_type: 8", "PS602"),
    _yaml("unknown kind", FSDP2, "distributed_type: FSDP", "distributed_type: FDSP", "PS602"),
    _yaml("unknown format", FSDP2, "bf16", "bfloat16", "PS602"),
    _yaml("unknown policy", FSDP2, "TRANSFORMER_BASED_WRAP", "TRANSFORMER_WRAP", "PS602"),
    _yaml("version 3", FSDP2, "fsdp_version: 2", "fsdp_version: 3", "PS602"),
    _yaml("number for text", FSDP1, "num_processes: 8", "num_processes: 1\ngpu_ids: 0", "PS602"),
    Bad(
        what="one GPU for several",
        text="distributed_type: MULTI_GPU\nnum_processes: 1\ngpu_ids: '0'\nmixed_precision: bf16\n",
        suffix=".yaml",
        code="PS629",
    ),
    _yaml("no without quotes", FSDP2, "mixed_precision: bf16", "mixed_precision: no", "PS602"),
    _yaml("no compiler without quotes", FSDP2, "fsdp_config", "dynamo_backend: NO\nfsdp_config", "PS602"),
    _yaml("switch of neither word", FSDP1, "loading: true", "loading: 'ture'", "PS602"),
    _yaml("power of ten", FSDP1, "fsdp_config:", "fsdp_config:\n  fsdp_min_num_params: 1e8", "PS602"),
    _yaml(
        "whole number with a point",
        FSDP1,
        "fsdp_config:",
        "fsdp_config:\n  fsdp_min_num_params: 1.0e+8",
        "PS602",
    ),
    _yaml("port of no machine", FSDP2, "29500", "70000", "PS602"),
    _yaml("steps of neither kind", ACCELERATED_ZERO, "steps: 2", "steps: two", "PS602"),
    _yaml("anchor twice", FSDP2, "num_machines: 2", "num_machines: &n 2\ndebug: &n false", "PS600"),
    _yaml("cut off", FSDP2, "fsdp_config:\n", "fsdp_config: {\n", "PS600"),
    _yaml("key twice", FSDP2, "machine_rank: 0\n", "machine_rank: 0\nmachine_rank: 1\n", "PS605"),
    _yaml("axes and world differ", MESH, "num_processes: 16", "num_processes: 8", "PS610"),
    _yaml("mesh with FSDP1", MESH, "fsdp_version: 2", "fsdp_version: 1", "PS611"),
    _yaml("mesh, version left out", MESH, "  fsdp_version: 2\n", "", "PS611"),
    _yaml(
        "two ways to cut sequences",
        MESH,
        "tp_size: 2",
        "cp_size: 2\n  parallelism_config_sp_size: 2",
        "PS612",
    ),
    _yaml("replicas of tp groups", MESH, "_dp_shard_size: 4", "_dp_shard_size: 1", "PS613"),
    _yaml(
        "strategy of FSDP1",
        FSDP2,
        "fsdp_reshard_after_forward: true",
        "fsdp_sharding_strategy: FULL_SHARD",
        "PS614",
    ),
    _yaml(
        "prefetch of FSDP1",
        FSDP2,
        "fsdp_version: 2",
        "fsdp_version: 2\n  fsdp_backward_prefetch: BACKWARD_PRE",
        "PS614",
    ),
    _yaml(
        "weights on rank 0 alone",
        FSDP1,
        "fsdp_sync_module_states: true",
        "fsdp_sync_module_states: false",
        "PS615",
    ),
    _yaml("no units", FSDP2, "TRANSFORMER_BASED_WRAP", "NO_WRAP", "PS616"),
    _yaml("units by no size", FSDP2, "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "PS685"),
    _yaml("checkpoint on one rank", FSDP1, "SHARDED_STATE_DICT", "FULL_STATE_DICT", "PS617"),
    _yaml("processes of no whole machine", FSDP2, "num_processes: 16", "num_processes: 15", "PS618"),
    _yaml("kind left out", FSDP2, "distributed_type: FSDP\n", "", "PS603"),
    _yaml("kind in small letters", FSDP2, "distributed_type: FSDP", "distributed_type: fsdp", "PS602"),
    _yaml("size 0", MESH, "_tp_size: 2", "_tp_size: 0", "PS602"),
    _yaml(
        "list of layers",
        FSDP2,
        "fsdp_version: 2",
        "fsdp_version: 2\n  fsdp_transformer_layer_cls_to_wrap: [LlamaDecoderLayer]",
        "PS602",
    ),
    _yaml("unknown strategy", FSDP1, "FULL_SHARD", "FULL_SHARDED", "PS602"),
    _yaml(
        "no broadcast in FSDP2",
        FSDP2,
        "fsdp_version: 2",
        "fsdp_version: 2\n  cpu_ram_efficient_loading: true\n  sync_module_states: false",
        "PS615",
    ),
    _yaml("machine 2 of 2", FSDP2, "machine_rank: 0", "machine_rank: 2", "PS619"),
    _yaml("nowhere to meet", FSDP2, "main_process_ip: 10.0.0.1\n", "", "PS620"),
    _yaml(
        "DeepSpeed set up twice",
        ACCELERATED_ZERO,
        "zero_stage: 3",
        "deepspeed_config_file: ds.json",
        "PS621",
    ),
    _yaml("FSDP not used", FSDP2, "distributed_type: FSDP", "distributed_type: MULTI_GPU", "PS622"),
    _yaml("FSDP1 on processors", FSDP1, "num_processes: 8", "num_processes: 8\nuse_cpu: true", "PS623"),
    _yaml("nothing sharded", FSDP1, "FULL_SHARD", "NO_SHARD", "PS624"),
    _yaml("stage 4", ACCELERATED_ZERO, "zero_stage: 3", "zero_stage: 4", "PS602"),
    _json("both short formats", "PS630", fp16={"enabled": True}),
    _json(
        "both, one by its old name", "PS630", fp16={"enabled": True}, bf16=None, bfloat16={"enabled": True}
    ),
    _json("old name, misspelt key", "PS601", bf16=None, bfloat16={"enable": True}),
    _json("scale below 0", "PS602", bf16=None, fp16={"enabled": True, "loss_scale": -1}),
    _json(
        "clipping by the optimizer",
        "PS649",
        optimizer={"type": "AdamW", "params": {"lr": 1e-4, "max_grad_norm": 1.0}},
    ),
    _json("torch's optimizer in small letters", "PS602", optimizer={"type": "sgd"}),
    _json("key of tensorboard", "PS601", tensorboard={"enabled": True, "output_dir": "runs"}),
    _json("key of wandb", "PS601", wandb={"enabled": True, "projekt": "mine"}),
    _json("key of csv_monitor", "PS601", csv_monitor={"enabled": True, "jobname": "mine"}),
    _json("key of aio", "PS606", aio={"block_sise": 1048576}),
    _json("earlier key of aio", "PS606", aio={"thread_count": 1}),
    _json("key of the profiler", "PS606", flops_profiler={"enabled": True, "profile_stp": 1}),
    _json("key of the logger", "PS601", comms_logger={"enabled": True, "prof_al": False}),
    _json("key of elasticity", "PS606", elasticity={"enabled": False, "micro_batch_size": [2]}),
    _json("batches that are no list", "PS602", elasticity={"enabled": False, "micro_batch_sizes": 2}),
    _json("key of data types", "PS606", data_types={"grad_accumulation_dtype": "fp32"}),
    _json("key of checkpoints", "PS606", checkpoint={"load_univeral": True}),
    _json("key of activations", "PS606", activation_checkpointing={"partition_activation": True}),
    _json("key of fp16", "PS601", bf16=None, fp16={"enabled": True, "loss_scale_windw": 100}),
    _json("key of a timer", "PS601", timers={"throughput": {"enable": True}}),
    _json("key of the compiler", "PS601", compile={"deepcompil": True}),
    _json("key of tensor parallelism", "PS601", tensor_parallel={"autotp_sise": 2}),
    _json("key of the hybrid engine", "PS601", hybrid_engine={"enable": True}),
    _json("key of the optimizer", "PS606", optimizer={"type": "AdamW", "parms": {"lr": 1e-4}}),
    _zero("key of leaves", "PS601", leaf_module={"clases": ["Expert"]}),
    _zero("key of ZenFlow", "PS601", zenflow={"topk_ration": 0.1}),
    _json("key of comet", "PS601", comet={"enabled": True, "projects": "mine"}),
    _json(
        "batch that the steps do not divide",
        "PS631",
        train_batch_size=63,
        train_micro_batch_size_per_gpu=None,
    ),
    _json("batch that does not divide", "PS631", train_batch_size=60),
    _json("no batch", "PS632", train_batch_size=None, train_micro_batch_size_per_gpu=None),
    _json("auto", "PS633", train_batch_size="auto"),
    _json("text for a number", "PS602", gradient_accumulation_steps="2"),
    _json("batch of 0", "PS602", train_micro_batch_size_per_gpu=0),
    _json("ZeRO as text", "PS602", zero_optimization="stage 3"),
    _json("optimizer of nobody", "PS602", optimizer={"type": "AdmaW", "params": {"lr": 1e-4}}),
    _json("scheduler of nobody", "PS602", scheduler={"type": "WarmupLinear"}),
    _zero("bucket below 0", "PS602", reduce_bucket_size=-1),
    _json("key that nobody reads", "PS606", gradient_cliping=1.0),
    _zero("misspelt key of ZeRO", "PS601", overlap_com=True),
    _zero("stage 5", "PS602", stage=5),
    _zero("parameters offloaded at stage 2", "PS634", stage=2, offload_param={"device": "cpu"}),
    _zero("optimizer offloaded at stage 0", "PS635", stage=0, offload_optimizer={"device": "cpu"}),
    _zero("old key", "PS636", cpu_offload=True),
    _zero("NVMe nowhere", "PS637", offload_param={"device": "nvme"}),
    _json("pipeline with stage 3", "PS638", pipeline={"stages": 4}),
    _zero("secondary shards at stage 2", "PS639", stage=2, zero_hpz_partition_size=8),
    _json("checkpoints not partitioned", "PS640", activation_checkpointing={"cpu_checkpointing": True}),
    _script(
        "alone on two nodes", '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"', "--standalone", "PS650"
    ),
    _script("nowhere to meet", ' --rdzv-endpoint "$HEAD:29500"', "", "PS650"),
    _script("an empty place to meet", '--rdzv-endpoint "$HEAD:29500"', "--rdzv-endpoint=", "PS650"),
    _script("each at its own door", '"$HEAD:29500"', "localhost:29500", "PS651"),
    _script("number of the node", "--rdzv-backend c10d", "--rdzv-backend c10d --node-rank 0", "PS652"),
    _script(
        "elastic and static",
        "--nnodes 2 --nproc-per-node 8 \\\n    --rdzv-backend c10d",
        "--nnodes 1:2",
        "PS653",
    ),
    _script(
        "eight agents, shortly",
        "--nodes=2\n#SBATCH --ntasks-per-node=1",
        "-N2 --ntasks-per-node 8",
        "PS654",
    ),
    _script("eight agents", "--ntasks-per-node=1", "--ntasks-per-node=8", "PS654"),
    _script("eight agents, by another name", "--ntasks-per-node=1", "--tasks-per-node=8", "PS654"),
    _script("eight agents, of all tasks", "--ntasks-per-node=1", "--ntasks=16", "PS654"),
    _script("eight agents, of srun", "srun torchrun", "srun --ntasks-per-node=8 torchrun", "PS654"),
    _script("eight agents, of all of srun's tasks", "srun torchrun", "srun -n16 -l torchrun", "PS654"),
    _script("one step on one node", "srun torchrun", "srun -n 1 torchrun", "PS661"),
    _script("GPUs of all nodes together", "--gpus-per-node=8", "--gpus=8", "PS657"),
    _script("GPUs of a task", "--gpus-per-node=8", "--gpus-per-task=a100:1", "PS657"),
    _script("line breaks of DOS", "\n", "\r\n", "PS664"),
    _script(
        "directive below a command",
        "#SBATCH --cpus-per-task=64\nexport OMP_NUM_THREADS=8\n",
        "export OMP_NUM_THREADS=8\n#SBATCH --cpus-per-task=64\n",
        "PS665",
    ),
    _script("first node only", "srun torchrun", "torchrun", "PS655"),
    _script("old launcher", "srun torchrun", "srun python -m torch.distributed.launch", "PS656"),
    _script(
        "old launcher, its own option",
        "srun torchrun",
        "srun python -u -m torch.distributed.launch --use_env",
        "PS656",
    ),
    _script("that option elsewhere", "srun torchrun", "srun torchrun --use_env", "PS601"),
    _script("Gaudis by their name", "--gpus-per-node=8", "--gres=hpu:4", "PS657"),
    _script("as many GPUs as one", "--gpus-per-node=8", "--gres=gpu:a100", "PS657"),
    _script("fewer nodes than are started", "--nnodes 2", "--nnodes 1", "PS661"),
    _script("more nodes than are started", "srun", "srun --nodes 1", "PS661"),
    _script("in a shell", "srun torchrun --nnodes 2", "srun bash -c 'torchrun --nnodes 3' #", "PS650"),
    _script("behind a shift", "srun", "N=$((1 << 2))\nsrun --nodes 1", "PS661"),
    _script("the second of two", "srun", "torchrun --standalone eval.py; srun --nodes=3", "PS661"),
    _script("more processes than GPUs", "--nproc-per-node 8", "--nproc-per-node=16", "PS657"),
    _script("more processes, abbreviated", "--nproc-per-node 8", "--nproc=16", "PS657"),
    _script("beginning of several options", "--nproc-per-node 8", "--no 8", "PS601"),
    _script("way back", "| head -n 1)", "| head -n 1 || echo localhost)", "PS658"),
    Bad(
        what="another head on each node",
        text=SCRIPT.replace("srun torchrun", "srun bash -c 'torchrun").replace(
            '"$HEAD:29500" train.py --nodes 3', "$(hostname):29500 train.py'"
        ),
        suffix=".sbatch",
        code="PS659",
    ),
    Bad(
        what="another head on each node, the shell's sign kept",
        text=SCRIPT.replace("srun torchrun", 'srun bash -c "torchrun').replace(
            '"$HEAD:29500" train.py --nodes 3', '\\$(hostname):29500 train.py"'
        ),
        suffix=".sbatch",
        code="PS659",
    ),
    Bad(
        what="another head wherever it runs",
        text="torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint $HOSTNAME:1 --nproc-per-node 8 t.py",
        suffix=".sh",
        code="PS659",
    ),
    _script("head that submitted", "$HEAD:", "$SLURM_LAUNCH_NODE_IPADDR:", "PS659"),
    _script("no cores", "#SBATCH --cpus-per-task=64\n", "", "PS660"),
    _script("number of the batch shell", "--rdzv-backend c10d", "--node-rank $SLURM_NODEID", "PS663"),
    _script("number of its process", "--rdzv-backend c10d", "--node-rank=${SLURM_PROCID}", "PS663"),
    _script(
        "number of the batch shell, or 0", "--rdzv-backend c10d", "--node-rank ${SLURM_NODEID:-0}", "PS663"
    ),
    _script("number as a sum", "--rdzv-backend c10d", "--node-rank $((SLURM_PROCID))", "PS663"),
    _script("number of the task on its node", "--rdzv-backend c10d", "--node-rank $SLURM_LOCALID", "PS663"),
    _script("the same number on both nodes", "--rdzv-backend c10d", "--node-rank 0", "PS663"),
    _script(
        "number of the batch shell, by another name",
        "srun torchrun --nnodes 2 --nproc-per-node 8 \\\n    --rdzv-backend c10d",
        "NODE_RANK=$SLURM_NODEID\nsrun torchrun --nnodes 2 --nproc-per-node 8 --node-rank $NODE_RANK",
        "PS663",
    ),
    Bad(
        what="number of the task on its node, in a shell of the step",
        text=SCRIPT.replace("srun torchrun", "srun bash -c 'torchrun").replace(
            '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" train.py --nodes 3',
            "--node-rank ${SLURM_LOCALID} --master-addr $HEAD train.py'",
        ),
        suffix=".sbatch",
        code="PS663",
    ),
    _script("in an environment", "srun torchrun", "uv run torchrun", "PS655"),
    _script("in a container", "srun torchrun", "A=1 apptainer exec --nv a.sif torchrun", "PS655"),
    _script("for some time", "srun torchrun", "timeout 2h torchrun", "PS655"),
    _script("processes below 0", "--nproc-per-node 8", "--nproc-per-node -4", "PS662"),
    _script("nothing behind the sign", "--nproc-per-node 8", "--nproc-per-node= 8", "PS662"),
    _script("dash of a text processor", "--nproc-per-node 8", "\N{EN DASH}nproc-per-node 8", "PS601"),
    _script(
        "node 2 of 2",
        '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"',
        "--node-rank 2 --master-addr $HEAD",
        "PS666",
    ),
    _script("no processes", "--nproc-per-node 8", "--nproc-per-node=0", "PS662"),
    _script("processes of no number", "--nproc-per-node 8", "--nproc-per-node 8x", "PS662"),
    _script("processes in a word", "--nproc-per-node 8", "--nproc-per-node eight", "PS662"),
    _script("processes by torch's other name", "--nproc-per-node 8", "--nproc-per-node cuda", "PS662"),
    _script("processes in capitals", "--nproc-per-node 8", "--nproc-per-node GPU", "PS662"),
    _script("processes in the plural", "--nproc-per-node 8", "--nproc-per-node gpus", "PS662"),
    _script("nodes in a word", "--nnodes 2", "--nnodes two", "PS662"),
    _script("letters of a rendezvous turned", "--rdzv-backend c10d", "--rdzv-backend cd10", "PS662"),
    _script("rendezvous in capitals", "--rdzv-backend c10d", "--rdzv-backend C10D", "PS662"),
    _script("backend of the process group", "--rdzv-backend c10d", "--rdzv-backend nccl", "PS662"),
    _script("port in a word", "--nnodes 2", "--nnodes 2 --master-port abc", "PS662"),
    _script("start of no kind", "--nnodes 2", "--nnodes 2 --start-method spwan", "PS662"),
    _script("an interval of no number", "--nnodes 2", "--nnodes 2 --monitor-interval often", "PS662"),
    _script("nodes of no number", "--nnodes 2", "--nnodes x", "PS662"),
    _script("nodes of three numbers", "--nnodes 2", "--nnodes 1:2:3", "PS662"),
    _script("fewest above most", "--nnodes 2", "--nnodes 2:1", "PS662"),
    _script("port of no machine", "--nnodes 2", "--nnodes 2 --master-port 70000", "PS662"),
    _script("port of no machine to meet at", "$HEAD:29500", "$HEAD:290000", "PS662"),
    _script("port of no number", "$HEAD:29500", "head:port", "PS662"),
    _script("nodes without numbers", "--rdzv-backend c10d ", "", "PS663"),
    _script(
        "nodes without numbers, the old way",
        '--rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"',
        "--master-addr $HEAD",
        "PS663",
    ),
    _script("misspelt option", "--rdzv-endpoint", "--rdzv-endpont", "PS601"),
    _script("misspelt variable", "OMP_NUM_THREADS=8", "NCCL_IB_DISABEL=1", "PS607"),
    _script("misspelt variable of several", "OMP_NUM_THREADS=8", "A=1 NCCL_IB_DISABEL=1", "PS607"),
    _script(
        "misspelt variable of the command", "srun torchrun", "NCCL_IB_DISABEL=1 srun torchrun", "PS607"
    ),
    _script("variable of the shell alone", "export OMP_NUM_THREADS", "OMP_NUM_THREADS", "PS571"),
    _script("loopback", "OMP_NUM_THREADS=8", "NCCL_SOCKET_IFNAME=lo", "PS514"),
    _script("debugging left on", "OMP_NUM_THREADS=8", "NCCL_SHM_DISABLE=1", "PS513"),
    _script("pattern for Gloo", "OMP_NUM_THREADS=8", "GLOO_SOCKET_IFNAME=^docker0", "PS515"),
    Bad(what="comment", text='{\n  // ours\n  "train_batch_size": 8\n}', suffix=".json", code="PS600"),
    Bad(what="comma at the end", text='{\n  "train_batch_size": 8,\n}', suffix=".json", code="PS600"),
    Bad(
        what="key twice",
        text='{"train_batch_size": 8, "bf16": {}, "train_batch_size": 16}',
        suffix=".json",
        code="PS605",
    ),
    Bad(what="empty", text="", suffix=".json", code="PS600"),
)
