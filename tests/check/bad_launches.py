"""Scripts of ``accelerate launch`` and deepspeed, and what each mistake in them must be called."""

from __future__ import annotations

from check.bad_configs import FSDP2, MESH, Bad

JOB = """\
#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
"""
ACCELERATE = (
    JOB
    + """\
srun bash -c 'accelerate launch --multi_gpu --num_processes 16 --num_machines 2 \\
    --machine_rank $SLURM_NODEID --main_process_ip '"$HEAD"' --main_process_port 29500 t.py --num_nodes 3'
"""
)
#: with a file beside the script
WITH_FILE = (
    JOB
    + """\
srun bash -c 'accelerate launch --config_file fsdp.yaml --machine_rank $SLURM_NODEID train.py'
"""
)
DEEPSPEED = """\
deepspeed --hostfile hosts --num_nodes 2 --num_gpus 8 --master_port 29500 t.py --deepspeed_config ds.json
"""
BY_HAND = (
    JOB
    + """\
srun bash -c 'deepspeed --hostfile hosts --no_ssh --node_rank $SLURM_NODEID --master_addr '$HEAD' train.py'
"""
)
#: DeepSpeed's file by accelerate's
OF_ZERO = """\
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config:
  deepspeed_config_file: bf16.json
"""
OF_STAGE = OF_ZERO.replace("deepspeed_config_file: bf16.json", "zero_stage: 2")
BF16 = '{"train_batch_size": "auto", "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
ENGINE = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
#: steps follow from the batch, unless accelerate says 1
WITHOUT_STEPS = ENGINE.replace(', "gradient_accumulation_steps": 2', "")
HOSTS = "worker-0 slots=8\nworker-1 slots=8  # the other\n"
#: what lies beside a script
BESIDE = {"fsdp.yaml": FSDP2, "mesh.yaml": MESH, "ds.json": ENGINE, "hosts": HOSTS} | {
    "steps.json": WITHOUT_STEPS,
    "zero.yaml": OF_ZERO,
    "stage.yaml": OF_STAGE,
    "bf16.json": BF16,
    "checkpointed.yaml": FSDP2 + "  fsdp_activation_checkpointing: true\n",
}


def _bad(what: str, base: str, old: str, new: str, code: str) -> Bad:
    assert old in base
    return Bad(what=what, text=base.replace(old, new), suffix=".sbatch", code=code)


def _accelerate(what: str, old: str, new: str, code: str) -> Bad:
    return _bad(f"accelerate: {what}", ACCELERATE, old, new, code)


def _deepspeed(what: str, old: str, new: str, code: str) -> Bad:
    return _bad(f"deepspeed: {what}", DEEPSPEED, old, new, code)


def _line(what: str, options: str, code: str) -> Bad:
    text = f"accelerate launch {options} t.py\n"
    return Bad(what=f"accelerate: {what}", text=text, suffix=".sh", code=code)


ALONE = (
    Bad(
        what="accelerate: nothing behind an option",
        text="accelerate launch --num_processes",
        suffix=".sh",
        code="PS662",
    ),
    Bad(
        what="torchrun: an empty count",
        text='torchrun --standalone --nproc-per-node "" train.py',
        suffix=".sh",
        code="PS662",
    ),
    _accelerate("misspelt option", "--num_machines", "--num_machine", "PS601"),
    _accelerate("beginning of an option", "--num_processes", "--num_proc", "PS601"),
    _accelerate("option of torchrun", "--num_processes", "--nproc_per_node", "PS601"),
    _accelerate("dash", "--num_machines", "\N{EN DASH}num_machines", "PS601"),
    _accelerate("one hyphen", "--num_machines", "-num_machines", "PS601"),
    _deepspeed("one hyphen", "--num_gpus", "-num_gpus", "PS601"),
    _deepspeed("one hyphen, its first a letter's", "--num_nodes 2 --num_gpus 8", "-include a:0", "PS601"),
    Bad(what="torchrun: one hyphen", text="torchrun -nproc_per_node 8 t.py", suffix=".sh", code="PS601"),
    _accelerate("compiler of nobody", "--multi_gpu", "--multi_gpu --dynamo_backend foo", "PS602"),
    _accelerate("compiler in capitals", "--multi_gpu", "--multi_gpu --dynamo_backend INDUCTOR", "PS602"),
    _accelerate("compiler's mode", "--multi_gpu", "--multi_gpu --dynamo_mode max", "PS602"),
    _accelerate("fp8 of nobody", "--multi_gpu", "--multi_gpu --fp8_backend TE", "PS602"),
    _accelerate("power of ten", "--multi_gpu", "--use_fsdp --fsdp_min_num_params 1e8", "PS602"),
    _accelerate("degree in a word", "--multi_gpu", "--use_megatron_lm --megatron_lm_pp_degree x", "PS602"),
    _accelerate("clipping in a word", "--multi_gpu", "--use_deepspeed --gradient_clipping on", "PS602"),
    _accelerate("no size", "--multi_gpu", "--use_fsdp --fsdp_auto_wrap_policy SIZE_BASED_WRAP", "PS685"),
    _accelerate("unknown format", "--multi_gpu", "--multi_gpu --mixed_precision bf61", "PS602"),
    _accelerate("format in capitals", "--multi_gpu", "--multi_gpu --mixed_precision BF16", "PS602"),
    _accelerate("processes in a word", "--num_processes 16", "--num_processes sixteen", "PS662"),
    _accelerate("processes of torchrun", "--num_processes 16", "--num_processes gpu", "PS662"),
    _accelerate("no machines", "--num_machines 2", "--num_machines 0", "PS662"),
    _accelerate("port of no machine", "29500", "290000", "PS662"),
    _accelerate("rendezvous", "--multi_gpu", "--multi_gpu --rdzv_backend cd10", "PS662"),
    _accelerate("each at its own door", "'\"$HEAD\"'", "127.0.0.1", "PS651"),
    _accelerate("another head on each node", "'\"$HEAD\"'", "$(hostname)", "PS659"),
    _accelerate("eight on each node", "--ntasks-per-node=1", "--ntasks-per-node=8", "PS654"),
    _accelerate("no srun", "srun bash", "bash", "PS655"),
    _accelerate("more processes than GPUs", "--num_processes 16", "--num_processes 32", "PS657"),
    _accelerate("no cores", "#SBATCH --cpus-per-task=64\n", "", "PS660"),
    _accelerate("more machines than are started", "--num_machines 2", "--num_machines 4", "PS661"),
    _accelerate("processes of no whole machine", "--num_processes 16", "--num_processes 15", "PS618"),
    Bad(
        what="accelerate: number of the batch shell",
        text=ACCELERATE.replace("srun bash -c '", "srun ")
        .replace("'\"$HEAD\"'", "$HEAD")
        .replace("3'", "3"),
        suffix=".sbatch",
        code="PS663",
    ),
    _accelerate("number of the task", "$SLURM_NODEID", "${SLURM_LOCALID:-0}", "PS663"),
    _accelerate("the same number", "$SLURM_NODEID", "1", "PS663"),
    _accelerate("machine 2 of 2", "$SLURM_NODEID", "2", "PS666"),
    _accelerate("two kinds", "--multi_gpu", "--multi_gpu --use_fsdp", "PS669"),
    _accelerate("several of one", "--num_processes 16 --num_machines 2", "--num_processes 1", "PS669"),
    _accelerate("mesh without FSDP", "--multi_gpu", "--multi_gpu --use_parallelism_config", "PS669"),
    _accelerate("no python", "--multi_gpu", "--multi_gpu --module --no_python", "PS669"),
    _accelerate("loopback", "HEAD=", "export NCCL_SOCKET_IFNAME=lo\nHEAD=", "PS514"),
    Bad(
        what="accelerate: one node, more processes than GPUs",
        text="#SBATCH --gres=gpu:4\n#SBATCH -c 32\naccelerate launch --num-processes=8 train.py\n",
        suffix=".sbatch",
        code="PS657",
    ),
    Bad(
        what="accelerate: words of variables",
        text='N=16\nL="accelerate launch --num_machine 2 \\\n --num_processes $N"\nsrun $L t.py\n',
        suffix=".sh",
        code="PS601",
    ),
    Bad(
        what="torchrun: words of a list",
        text="#SBATCH --gres=gpu:4\n#SBATCH -c 32\nARGS=(\n  --nproc-per-node 8\n)\n"
        'srun torchrun "${ARGS[@]}" t.py\n',
        suffix=".sbatch",
        code="PS657",
    ),
    Bad(
        what="accelerate: as a module",
        text="python -m accelerate.commands.launch --num_processes none train.py\n",
        suffix=".sh",
        code="PS662",
    ),
    _deepspeed("misspelt option", "--num_gpus", "--num_gpu_s", "PS601"),
    _deepspeed("hyphens", "--num_gpus", "--num-gpus", "PS601"),
    _deepspeed("GPUs in a word", "--num_gpus 8", "--num_gpus eight", "PS662"),
    _deepspeed("range of nodes", "--num_nodes 2", "--num_nodes 1:2", "PS662"),
    _deepspeed("port of no machine", "29500", "65536", "PS662"),
    _deepspeed("launcher of nobody", "--num_nodes 2", "--num_nodes 2 --launcher slrum", "PS602"),
    _deepspeed("each at its own door", "--master_port", "--master_addr localhost --master_port", "PS651"),
    _deepspeed("both choices", "--num_nodes 2 --num_gpus 8", "-i worker-0 -e worker-1", "PS670"),
    _deepspeed("choice and number", "--num_nodes 2", "--include worker-0", "PS670"),
    _deepspeed("by hand without a number", "--num_nodes 2", "--no_ssh", "PS670"),
    _deepspeed("elastic, nowhere to meet", "--num_nodes 2", "--elastic_training", "PS670"),
    Bad(
        what="deepspeed: more processes than GPUs",
        text="#SBATCH --gres=gpu:4\n#SBATCH -c 32\ndeepspeed --num_gpus 8 train.py\n",
        suffix=".sbatch",
        code="PS657",
    ),
    Bad(
        what="deepspeed: no cores",
        text="#SBATCH --gres=gpu:4\ndeepspeed --num_gpus 4 train.py\n",
        suffix=".sbatch",
        code="PS660",
    ),
    _bad("deepspeed: eight on each node", BY_HAND, "--ntasks-per-node=1", "--ntasks-per-node=8", "PS654"),
)


#: mistakes that files beside the script show
TOGETHER = (
    _bad("accelerate: places", WITH_FILE, "fsdp.yaml", "mesh.yaml --num_processes 8", "PS610"),
    _bad("accelerate: axis", WITH_FILE, "fsdp.yaml", "mesh.yaml --parallelism_config_tp_size 4", "PS610"),
    _bad("accelerate: the file's machines", WITH_FILE, "--nodes=2", "--nodes=3", "PS661"),
    _bad("accelerate: a process too few", WITH_FILE, "fsdp.yaml", "fsdp.yaml --num_processes 15", "PS618"),
    _deepspeed(
        "one of two hosts that is not there",
        "--num_nodes 2 --num_gpus 8",
        "--include worker-0@worker-9",
        "PS671",
    ),
    _bad("accelerate: the file's number", WITH_FILE, " --machine_rank $SLURM_NODEID", "", "PS663"),
    _bad(
        "accelerate: without srun",
        WITH_FILE.replace(" --machine_rank $SLURM_NODEID", ""),
        "srun ",
        "",
        "PS655",
    ),
    _bad("accelerate: GPUs", WITH_FILE, "--gpus-per-node=8", "--gpus-per-node=4", "PS657"),
    _line("another format", "--config_file zero.yaml --mixed_precision fp16", "PS688"),
    _line(
        "another format, of the line's file",
        "--use_deepspeed --deepspeed_config_file bf16.json --mixed_precision fp16",
        "PS688",
    ),
    _line("a stage beside a file", "--config_file stage.yaml --deepspeed_config_file bf16.json", "PS621"),
    _line(
        "checkpointed twice", "--config_file checkpointed.yaml t.py --gradient_checkpointing True", "PS699"
    ),
    _deepspeed("another batch", "--num_gpus 8", "--num_gpus 6", "PS673"),
    _deepspeed(
        "another batch, as HF's trainer takes it",
        "8 --master_port 29500 t.py --deepspeed_config",
        "5 t.py --deepspeed",
        "PS673",
    ),
    Bad(
        what="torchrun: another batch",
        text="torchrun --nproc-per-node 4 t.py --deepspeed_config=ds.json",
        suffix=".sh",
        code="PS673",
    ),
    _bad(
        "accelerate: another batch",
        ACCELERATE,
        "--multi_gpu --num_processes 16",
        "--use_deepspeed --deepspeed_config_file ds.json --num_processes 12",
        "PS673",
    ),
    _bad(
        "accelerate: another batch, without steps",
        ACCELERATE,
        "--multi_gpu --num_processes 16",
        "--use_deepspeed --deepspeed_config_file steps.json --num_processes 12",
        "PS673",
    ),
    _deepspeed("more nodes than hosts", "--num_nodes 2", "--num_nodes 4", "PS671"),
    _deepspeed("more processes than slots", "--num_gpus 8", "--num_gpus 16", "PS671"),
    _deepspeed("host of no file", "--num_nodes 2 --num_gpus 8", "--include worker-2:0", "PS671"),
    _bad("deepspeed: number of the task", BY_HAND, "$SLURM_NODEID", "$SLURM_LOCALID", "PS663"),
    _bad("deepspeed: node 2 of 2", BY_HAND, "$SLURM_NODEID", "2", "PS666"),
)
GOOD_LAUNCHES = (
    "torchrun --nproc-per-node 8 t.py --deepspeed_config steps.json\n",
    "accelerate launch --use_deepspeed --deepspeed_config_file steps.json --num_processes 16 t.py\n",
    # FSDP's plugin is the file's
    "accelerate launch --config_file fsdp.yaml --machine_rank 1 t.py --gradient_checkpointing\n",
    "accelerate launch --config_file checkpointed.yaml --machine_rank 1 t.py\n",
    "accelerate launch --config_file checkpointed.yaml --cpu t.py --gradient_checkpointing\n",
    # the line goes before the file
    "accelerate launch --config_file fsdp.yaml --num_machines 1 --num_processes 2 --multi_gpu t.py\n",
    "accelerate launch --config_file fsdp.yaml --num_machines 1 --num_processes 2 --cpu t.py\n",
    # its own default
    'deepspeed --include "" --num_gpus 4 train.py\n',
    "deepspeed --num_gpus -2 train.py\n",
    ACCELERATE,
    WITH_FILE,
    WITH_FILE.replace("fsdp.yaml", "mesh.yaml"),
    DEEPSPEED,
    BY_HAND,
    # what the shell knows, and files that are not here
    ACCELERATE.replace("--num_processes 16", "--num_processes $((SLURM_NNODES * GPUS))"),
    WITH_FILE.replace("fsdp.yaml", "$CONFIGS/fsdp.yaml").replace(" --machine_rank $SLURM_NODEID", ""),
    WITH_FILE.replace("fsdp.yaml", "other.yaml --num_processes 8"),
    WITH_FILE.replace("fsdp.yaml", "mesh.yaml --num_processes $N"),
    WITH_FILE.replace("fsdp.yaml", "mesh.yaml --parallelism_config_tp_size $TP"),
    WITH_FILE.replace("fsdp.yaml", "fsdp.yaml --gpu_ids $IDS"),
    # a kind on the line leaves the file's mesh out
    WITH_FILE.replace("fsdp.yaml", "mesh.yaml --use_fsdp --num_processes 8"),
    ACCELERATE.replace("--multi_gpu", "--use_parallelism_config $FSDP_OPTIONS"),
    DEEPSPEED.replace("hosts", "/job/hosts").replace("_nodes 2", "_nodes 4"),
    DEEPSPEED.replace("--num_nodes 2", "--num_nodes $NODES"),
    # the batch of 8 ranks: on 16 GPUs the script may divide the model
    DEEPSPEED.replace("--num_nodes 2", "--num_nodes 1"),
    "torchrun --nproc-per-node 4 t.py --deepspeed_config other.json\ntorchrun t.py --deepspeed\n",
    DEEPSPEED.replace("--num_gpus 8", "--num_gpus 6 --autotuning tune"),
    "torchrun --nproc-per-node $N t.py --deepspeed_config ds.json\n",
    "deepspeed --num_gpus=1 --bind_cores_to_rank train.py --deepspeed\n",
    "deepspeed -H hosts -i worker-1:0,2@worker-0 train.py\n",
    "deepspeed --num_acc 8 train.py\n",
    "deepspeed --no_local_rank --launcher OpenMPI --launcher_args '-x A' train.py\n",
    # hyphens and letters
    ACCELERATE.replace("_processes", "-processes").replace("--machine_rank", "--machine-rank"),
    "accelerate launch -m package.train\n",
    "accelerate launch --cpu --num_processes 2 train.py --bf17\n",
    "accelerate-launch --use_deepspeed --deepspeed_config_file ds.json train.py\n",
    "accelerate launch --use_fsdp --fsdp_min_num_params $N --dynamo_backend inductor t.py\n",
    "accelerate launch --use_deepspeed --gradient_clipping .5 --zero_stage 2 --num_processes 2 t.py\n",
    "deepspeed -H hosts -i worker-0 -q train.py -num_gpus 3\n",
    # what the line has beside the file that is named there is passed over
    "accelerate launch --config_file zero.yaml --zero_stage 3 --mixed_precision bf16 t.py\n",
    # node 0 is at home there
    "torchrun --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --nproc-per-node 4 t.py\n",
    (
        "accelerate launch --multi_gpu --num_machines 2 --num_processes 8 --machine_rank 0 "
        "--main_process_ip localhost --main_process_port 29500 t.py\n"
    ),
    # DeepSpeed and MPI reach the other nodes themselves
    JOB + "accelerate launch --use_deepspeed --num_machines 2 --num_processes 16 train.py\n",
    JOB + "accelerate launch --mpirun_hostfile hosts --num_machines 2 --num_processes 16 train.py\n",
    JOB + "deepspeed --hostfile hosts train.py\n",
    # a file that is not here may set up DeepSpeed
    JOB + "accelerate launch --config_file other.yaml --num_machines 2 train.py\n",
    # launchers' names where they are no commands
    "pip install deepspeed -U\ncd deepspeed && ls\nconda install deepspeed -y\n" + DEEPSPEED,
    "srun python train.py --strategy deepspeed --num_gpu 3\n" + DEEPSPEED,
    "bash ./run.sh --backend deepspeed --num_gpu 3\naccelerate config\n" + DEEPSPEED,
)
