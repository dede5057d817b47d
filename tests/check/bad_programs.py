"""Scripts that launch something else than was meant, or whose shell reads other lines than were meant."""

from __future__ import annotations

from check.bad_configs import Bad


def _plain(what: str, text: str, code: str) -> Bad:
    return Bad(what=what, text=text, suffix=".sh", code=code)


#: commands that run something else than was meant, or that end too early
PROGRAMS = (
    _plain("torchrun: python", "torchrun --nproc-per-node 8 python t.py", "PS674"),
    _plain("deepspeed: python", "deepspeed --num_gpus=8 /usr/bin/python3.11 t.py", "PS674"),
    _plain("torchrun: another launcher", "torchrun --nproc-per-node 8 accelerate launch t.py", "PS674"),
    _plain("accelerate: another launcher", "accelerate launch --multi_gpu torchrun t.py", "PS674"),
    _plain("torchrun: a module's file", "torchrun --nproc-per-node 8 -m src.train.py", "PS674"),
    _plain("accelerate: a module's path", "accelerate launch --module src/train", "PS674"),
    _plain("torchrun: nothing to run", "torchrun --nproc-per-node 8\n", "PS674"),
    _plain("accelerate: nothing to run", "accelerate launch --config_file fsdp.yaml", "PS674"),
    _plain("torchrun: options behind the script", "torchrun t.py --nproc_per_node 8", "PS675"),
    _plain("accelerate: options behind the script", "accelerate launch t.py --num_processes=8", "PS675"),
    _plain("deepspeed: options behind the script", "deepspeed t.py --num_gpus 8", "PS675"),
    _plain("torchrun: GPUs shown", "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 4 t.py", "PS676"),
    _plain(
        "torchrun: GPUs shown above",
        "export CUDA_VISIBLE_DEVICES=0,1\nN=4\ntorchrun --nproc-per-node $N t.py",
        "PS676",
    ),
    _plain(
        "accelerate: GPUs shown",
        "CUDA_VISIBLE_DEVICES=0 accelerate launch --multi_gpu --num_processes 2 t.py",
        "PS676",
    ),
    _plain("deepspeed: GPUs shown", "CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 2 t.py", "PS677"),
    _plain("torchrun: blank behind a backslash", "torchrun --nnodes 1 \\ \n  --role a t.py", "PS678"),
    _plain("torchrun: backslash left out", "torchrun --nproc-per-node 8 t.py\n  --lr 1\n", "PS678"),
    _plain(
        "torchrun: remark among options",
        "torchrun --nproc-per-node 8 \\\n  # --nnodes 2 \\\n  --nnodes 1 t.py\n",
        "PS678",
    ),
    _plain("blanks in an assignment", "N = 8\ntorchrun --nproc-per-node $N t.py", "PS679"),
    _plain("a blank behind the sign", "N= 8\ntorchrun --nproc-per-node $N t.py", "PS679"),
    # what stands before them ends where it ends
    _plain("behind two documents", "cat <<A; cat <<'B C'\nA\nx\nB C\nN = 8\ntorchrun t.py", "PS679"),
    _plain("behind a quoted document", 'bash -c "cat <<A\nA\n"\nN = 8\ntorchrun t.py', "PS679"),
    _plain("behind a sum", "N=$((1 << M))\nN = 8\ntorchrun t.py", "PS679"),
    _plain("behind a quoted condition", "echo '[[ '\nN = 8\ntorchrun t.py", "PS679"),
    _plain("NCCL's level", "export NCCL_DEBUG=WARNING\ntorchrun t.py", "PS524"),
    _plain("torch's level", "TORCH_DISTRIBUTED_DEBUG=1 torchrun t.py", "PS525"),
    _plain("variable in a directive", "#SBATCH --nodes=$N\nsrun torchrun --nnodes $N t.py", "PS680"),
)
GOOD_PROGRAMS = (
    "torchrun --nproc-per-node 2 > log\ntorchrun --nproc-per-node 2 tools/{name}/python\n",
    # options of scripts that are not Megatron's
    "torchrun --nproc-per-node 2 t.py --micro-batch-size 3 --global-batch-size 8\n",
    # other programs, and what is not certain
    "torchrun --no-python python t.py\naccelerate launch --no_python bash t.sh\ntorchrun --help\n",
    'torchrun --nproc-per-node 2 "$@"\ntorchrun --nproc-per-node 2 $SCRIPT\ntorchrun $ALL > log\n',
    "torchrun --nproc-per-node 2 tools/python.py\naccelerate launch -m pkg.py_train\n",
    "torchrun --nproc-per-node 2 t.py --nproc_per_node 2 --num_nodes 1\n",
    "CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 t.py\nCUDA_VISIBLE_DEVICES=2 deepspeed t.py\n",
    "export NCCL_DEBUG=warn TORCH_DISTRIBUTED_DEBUG=$LEVEL\nNCCL_DEBUG= torchrun t.py\n",
    "CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 t.py\n",
    "CUDA_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=$ALL torchrun --nproc-per-node 2 t.py\n",
    "while true; do case $1 in\n  --a | -b) N=1 ;;\n  --lr) N=2 ;;\nesac; done\ntorchrun t.py\n",
    "CUDA_VISIBLE_DEVICES=2,3 deepspeed --include localhost:2,3 t.py --num_gpus 2\n",
    "CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --num_gpus 2 t.py\n",
    "CUDA_VISIBLE_DEVICES=0 accelerate launch --gpu_ids 2,3 --num_processes 2 t.py\n",
    # shown to this shell alone
    "export CUDA_VISIBLE_DEVICES=0\nsrun -n 1 torchrun --nproc-per-node 2 t.py\n",
    "export CUDA_VISIBLE_DEVICES=0\ndocker exec box torchrun --nproc-per-node 2 t.py\n",
    # conditions, brackets and documents that are no commands
    "if [[ -f a &&\n  -f b ]]; then N=1; fi\ntorchrun t.py\n",
    "A=(\n  --stop 'a)'  # don't :)\n  --lr 1\n)\ntorchrun t.py \"${A[@]}\"\n",
    "cat <<A; cat <<'B C'\nx = 1\nA\n  --y\nB C\ncat <<\\E\nz = 1\nE\ntorchrun t.py\n",
    "#!/usr/bin/env python3\n#SBATCH --nodes=1\nx = 3\n",
    "torchrun t.py \\\n  --lr 1 \\\n  # --fp16\n\nIFS= read N\nX='\n--a\n'\n[ $N = 1 ]\n",
)
