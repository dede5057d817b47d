"""Launches of Megatron-LM whose options need, or exclude, each other, and launches that are in order."""

from __future__ import annotations

from check.bad_configs import Bad

#: with the distributed optimizer
OVERLAPPED = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
SHAPE="--num-layers 32 --hidden-size 4096 --num-attention-heads 32"
torchrun --standalone --nproc-per-node gpu pretrain_gpt.py $SHAPE --bf16 --micro-batch-size 1 \\
    --tensor-model-parallel-size 2 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""
#: with torch's FSDP2
SHARDED = """\
torchrun --standalone --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --bf16 \\
    --micro-batch-size 1 --use-torch-fsdp2 --no-gradient-accumulation-fusion \\
    --untie-embeddings-and-output-weights --ckpt-format torch_dist
"""
#: with activations on the host
OFFLOADED = """\
torchrun --standalone --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --bf16 \\
    --micro-batch-size 1 --cpu-offloading --cpu-offloading-num-layers 16
"""
#: with experts, whose tensor degree is that of the other layers
EXPERTS = """\
torchrun --standalone --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 \\
    --num-attention-heads 32 --tensor-model-parallel-size 2 --sequence-parallel --num-experts 8 \\
    --expert-model-parallel-size 4 --micro-batch-size 1
"""


def _bad(what: str, code: str, base: str, old: str, new: str) -> Bad:
    assert base.count(old) == 1, f"{old!r} stands {base.count(old)} times"
    return Bad(what=f"Megatron: {what}", text=base.replace(old, new), suffix=".sh", code=code)


MEGATRONS = (
    _bad("gathers of no optimizer", "PS695", OVERLAPPED, " --use-distributed-optimizer", ""),
    _bad("gathers without reductions", "PS695", OVERLAPPED, " --overlap-grad-reduce", ""),
    _bad(
        "stages of FSDP2",
        "PS696",
        SHARDED,
        "pipeline-model-parallel-size 1",
        "pipeline-model-parallel-size 2",
    ),
    _bad(
        "experts of FSDP2",
        "PS696",
        SHARDED,
        "--bf16",
        "--bf16 --num-experts 8 --expert-model-parallel-size 8",
    ),
    _bad("two optimizers", "PS696", SHARDED, "--bf16", "--bf16 --use-distributed-optimizer"),
    _bad("FSDP2 in fp16", "PS696", SHARDED, "--bf16", "--fp16"),
    _bad("FSDP2's checkpoints", "PS696", SHARDED, "--ckpt-format torch_dist", "--ckpt-format torch"),
    _bad("fused accumulation", "PS696", SHARDED, " --no-gradient-accumulation-fusion", ""),
    _bad("tied embeddings", "PS696", SHARDED, "--untie-embeddings-and-output-weights ", ""),
    _bad(
        "offloading stages",
        "PS697",
        OFFLOADED,
        "pipeline-model-parallel-size 1",
        "pipeline-model-parallel-size 4",
    ),
    _bad("offloading what is recomputed", "PS697", OFFLOADED, "--bf16", "--bf16 --recompute-activations"),
    _bad(
        "offloading by its number",
        "PS697",
        OFFLOADED,
        "--cpu-offloading --cpu-offloading-num-layers 16",
        "--cpu-offloading-num-layers 16 --recompute-granularity full",
    ),
    _bad("offloading all", "PS697", OFFLOADED, "num-layers 16", "num-layers 32"),
    _bad(
        "experts of no whole number",
        "PS698",
        EXPERTS,
        "--expert-model-parallel-size 4",
        "--expert-model-parallel-size 8",
    ),
    _bad(
        "experts' own degree",
        "PS698",
        EXPERTS,
        "--num-experts 8",
        "--num-experts 8 --expert-tensor-parallel-size 4",
    ),
)
GOOD_MEGATRONS = (
    OVERLAPPED,
    # Megatron's own FSDP, a muon that divides its states, and what a variable may switch on
    OVERLAPPED.replace("--use-distributed-optimizer", "--use-megatron-fsdp").replace(
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n", ""
    ),
    OVERLAPPED.replace("--use-distributed-optimizer", "--optimizer dist_muon"),
    OVERLAPPED.replace("--use-distributed-optimizer", "--optimizer $OPTIMIZER"),
    OVERLAPPED.replace("--use-distributed-optimizer --overlap-grad-reduce", "$DIVIDED"),
    OVERLAPPED.replace(" --use-distributed-optimizer", " --yaml-cfg model.yaml"),
    OVERLAPPED.replace(" --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", ""),
    # sizes that stand for those of a checkpoint
    OVERLAPPED.replace("--num-layers 32 --hidden-size 4096", "--num-layers -1 --hidden-size -1"),
    SHARDED,
    SHARDED.replace("torch_dist", "torch_dcp"),
    SHARDED.replace("torch_dist", "$FORMAT"),
    SHARDED.replace(" --ckpt-format torch_dist", ""),
    # a checkpoint says whether they are tied
    SHARDED.replace("--untie-embeddings-and-output-weights", "--load $CHECKPOINT --use-checkpoint-args"),
    SHARDED.replace("--pipeline-model-parallel-size 1", "--pipeline-model-parallel-size $STAGES"),
    SHARDED.replace("--no-gradient-accumulation-fusion", "--fsdp2-config-path fsdp2.yaml"),
    OFFLOADED,
    OFFLOADED.replace("--cpu-offloading --", "--"),
    OFFLOADED.replace(
        "--cpu-offloading --cpu-offloading-num-layers 16", "--cpu-offloading-num-layers 0"
    ).replace("--bf16", "--bf16 --recompute-activations"),
    OFFLOADED.replace("num-layers 32", "num-layers $LAYERS"),
    EXPERTS,
    # tensor parallelism of their own, or none, and shards of weights
    EXPERTS.replace(
        "--expert-model-parallel-size 4", "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
    ),
    EXPERTS.replace("--expert-model-parallel-size 4", "--expert-model-parallel-size $EP"),
    EXPERTS.replace("--nproc-per-node 8", "--nproc-per-node $GPUS").replace(
        "--expert-model-parallel-size 4", "--expert-model-parallel-size 8"
    ),
    EXPERTS.replace("--expert-model-parallel-size 4", "--expert-model-parallel-size 8").replace(
        "--bf16", "--bf16 --expert-tensor-parallel-num-weight-shards 2"
    ),
)
