"""Scripts that launch something else than was meant, or whose shell reads other lines than were meant."""

from __future__ import annotations

from check.bad_configs import Bad


def _plain(what: str, text: str, code: str) -> Bad:
    return Bad(what=what, text=text, suffix=".sh", code=code)


PORT = "torchrun --master-port 29501 --nproc-per-node 4"
MEETING = "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:29501 --nproc-per-node 4"
SERVER = "torchrun --rdzv-backend etcd --rdzv-endpoint localhost:2379 --nproc-per-node 4"

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
    _plain(
        "torchrun: a task's GPU",
        "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\ntorchrun --nproc-per-node 4 t.py",
        "PS538",
    ),
    _plain(
        "accelerate: a rank's GPU",
        "CUDA_VISIBLE_DEVICES=${LOCAL_RANK:-0} accelerate launch --num_machines 1 --num_processes 4 t.py",
        "PS538",
    ),
    _plain(
        "torchrun: a task's GPU in a step",
        "srun -n 4 bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID torchrun --nproc-per-node 4 t.py'",
        "PS538",
    ),
    _plain("torchrun: one port", f"{PORT} a.py &\n{PORT} b.py &\nwait", "PS535"),
    _plain("torchrun: one port on a line", f"nohup {PORT} a.py > a & {PORT} b.py", "PS535"),
    _plain(
        "torchrun: one endpoint",
        f"cd a && {MEETING} a.py &\nsleep 9\n{MEETING} b.py",
        "PS535",
    ),
    _plain("torchrun: one port in two ways", f"{PORT} a.py &\n{MEETING} b.py", "PS535"),
    _plain(
        "deepspeed: its port", "deepspeed -i localhost:0 t.py &\ndeepspeed -i localhost:1 t.py", "PS535"
    ),
    _plain(
        "torchrun: jobs at a server",
        "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint etcd.example:2379 t.py",
        "PS536",
    ),
    _plain(
        "accelerate: checkpointed twice",
        "accelerate launch --use_fsdp --fsdp_activation_checkpointing true t.py --gradient_checkpointing",
        "PS699",
    ),
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
    # one process for each task or rank, GPUs that a step is shown, and what accelerate shows in their place
    "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\ntorchrun --nproc-per-node 1 t.py\ntorchrun t.py\n",
    "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun -n 1 torchrun --nproc-per-node 4 t.py\n",
    "CUDA_VISIBLE_DEVICES=$GPUS torchrun --nproc-per-node 4 t.py\n",
    (
        "CUDA_VISIBLE_DEVICES=$RANK accelerate launch --gpu_ids 0,1 --num_machines 1 --num_processes 2 "
        "--multi_gpu t.py\n"
    ),
    "CUDA_VISIBLE_DEVICES=$RANK accelerate launch --cpu --num_machines 1 --num_processes 2 t.py\n",
    "CUDA_VISIBLE_DEVICES=$RANK deepspeed --num_gpus 2 t.py\n",
    # one behind the other, ports of their own, and those that nobody knows
    f"{PORT} a.py &\nwait\n{PORT} b.py\n",
    f"{PORT} a.py &\nkill $!\n{PORT} b.py\n",
    f"{PORT} a.py\n{PORT} b.py\n",
    f"{PORT} a.py &\n{PORT.replace('29501', '29502')} b.py\n",
    f"{PORT} a.py &\n{PORT} --standalone b.py\n",
    f"{PORT} a.py &\n{PORT} $MORE b.py\n",
    f"{PORT} a.py &\n{PORT} --nnodes 2 --node-rank 1 --master-addr a b.py\n",
    f"{PORT.replace('29501', '$((P + 1))')} a.py &\n{PORT.replace('29501', '$((P + 1))')} b.py\n",
    f"{MEETING.replace('29501', '0')} a.py &\n{MEETING.replace('29501', '0')} b.py\n",
    "torchrun --nproc-per-node 2 a.py &\ntorchrun --nproc-per-node 2 b.py &\nwait\n",
    f"accelerate launch --cpu --main_process_port 29501 a.py &\n{PORT} b.py\n",
    f"{MEETING.replace('localhost', 'a')} a.py &\n{MEETING.replace('localhost', 'a')} b.py\n",
    f"{SERVER} --rdzv-id a t.py &\n{SERVER} --rdzv-id b t.py\n",
    # where one of them runs alone
    f"if $A; then {PORT} a.py & else {PORT} b.py; fi\n",
    f"if $A; then\n{PORT} a.py &\nelse\n{PORT} b.py\nfi\n",
    f"[ $A ] && {PORT} a.py &\n{PORT} b.py\n",
    f"run() {{\n{PORT} a.py &\n}}\n{PORT} b.py\n",
    f"ssh a {PORT} a.py &\nssh b {PORT} b.py\n",
    f"bash -c '{PORT} a.py &'\n{PORT} b.py\n",
    # a job's id, and rendezvous that end with their jobs
    "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint e:2379 --rdzv-id $SLURM_JOB_ID t.py\n",
    "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint e:2379 $MORE t.py\n",
    "export PET_RDZV_ID=7\ntorchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint e:2379 t.py\n",
    "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint $HEAD:2379 t.py\n",
    "torchrun --rdzv-backend etcd --rdzv-endpoint localhost:2379 t.py\n",
    "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a.example:29500 t.py\n",
    # checkpointed by one of them
    "accelerate launch --use_fsdp --fsdp_activation_checkpointing true t.py --gradient_checkpointing no\n",
    "accelerate launch --use_fsdp --fsdp_activation_checkpointing false t.py --gradient_checkpointing\n",
    "accelerate launch --multi_gpu --fsdp_activation_checkpointing true t.py --gradient_checkpointing\n",
    "accelerate launch --use_fsdp --fsdp_activation_checkpointing true t.py --learning_rate 1\n",
)
