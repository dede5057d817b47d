"""Scripts that start ranks by srun or mpirun, without a launcher of torch's, and some that do it well."""

from __future__ import annotations

from check.bad_configs import Bad

#: each program reads its numbers of what Slurm gives it
SLURM = """\
#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NTASKS
srun --cpus-per-task=16 python -u train.py --epochs 3
"""
#: a shell of each task reads them
SHELL = SLURM.replace(
    "python -u train.py --epochs 3",
    "bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec python train.py'",
)
MPI = """\
#!/usr/bin/env bash
export MASTER_ADDR=node1 MASTER_PORT=29500 NCCL_DEBUG=WARN
mpirun -np 16 --host node1:8,node2:8 -x MASTER_ADDR -x MASTER_PORT -x NCCL_DEBUG python train.py
"""
_SRUN, _TASKS, _SIZE = "srun --cpus-per-task=16 python", "--ntasks-per-node=4", "=$SLURM_NTASKS"
_HEAD = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_HOSTS = "node1:8,node2:8"


def _bad(what: str, base: str, old: str, new: str, code: str, suffix: str = ".sbatch") -> Bad:
    assert old in base
    return Bad(what=f"ranks: {what}", text=base.replace(old, new), suffix=suffix, code=code)


RANKS = (
    _bad("of the batch script", SLURM, "srun", "export RANK=$SLURM_PROCID\nsrun", "PS561"),
    _bad("of its node", SLURM, "srun", "export LOCAL_RANK=${SLURM_LOCALID}\nsrun", "PS561"),
    _bad("all 0", SLURM, "srun", "export RANK=0\nsrun", "PS561"),
    _bad("of MPI's caller", MPI, "mpirun", "export RANK=$OMPI_COMM_WORLD_RANK\nmpirun", "PS561", ".sh"),
    _bad("as many as nodes", SLURM, _SIZE, "=$SLURM_NNODES", "PS562"),
    _bad("as many as of a node", SLURM, _SIZE, "=$SLURM_NTASKS_PER_NODE", "PS562"),
    _bad("too few by number", SLURM, _SIZE, "=4", "PS562"),
    _bad("too many of MPI", MPI, "NCCL_DEBUG=WARN", "NCCL_DEBUG=WARN WORLD_SIZE=32", "PS562", ".sh"),
    _bad("each at itself", SLURM, _HEAD, "MASTER_ADDR=localhost", "PS563"),
    _bad("each host at itself", MPI, "MASTER_ADDR=node1", "MASTER_ADDR=127.0.0.1", "PS563", ".sh"),
    _bad("two on a GPU", SLURM, _TASKS, "--ntasks-per-node=8", "PS564"),
    _bad("two on a GPU, by srun", SLURM, "srun ", "srun --ntasks=16 ", "PS564"),
    _bad("never started", SLURM, _SRUN, "python", "PS565"),
    _bad("never started, of a module", SLURM, f"{_SRUN} -u train.py", "python -m train", "PS565"),
    _bad("without slots", MPI, _HOSTS, "node1,node2", "PS566", ".sh"),
    _bad("without slots beside parameters", MPI, _HOSTS, "node1,node2 --mca btl tcp,self", "PS566", ".sh"),
    _bad("with too few slots", MPI, _HOSTS, "node1:8,node2:4", "PS566", ".sh"),
    _bad("less than no rank", MPI, "-np 16", "-np -3", "PS570", ".sh"),
    _bad("no rank", MPI, "-np 16", "-np 0", "PS570", ".sh"),
    _bad("no number of ranks", MPI, "-np 16", "-np all", "PS570", ".sh"),
    _bad("that meet nowhere", SLURM, "export MASTER_PORT", "MASTER_PORT", "PS571"),
    _bad("a kept address", SLURM, "srun", "HF_ENDPOINT=https://hub\nsrun", "PS571"),
    _bad("kept settings", SLURM, "srun", "NCCL_DEBUG='WARN' # loud\nsrun", "PS571"),
    _bad("without settings", MPI, " -x NCCL_DEBUG", "", "PS567", ".sh"),
    _bad(
        "without settings of a file", MPI, f"--host {_HOSTS} -x MASTER_ADDR", "--hostfile h", "PS567", ".sh"
    ),
)
GOOD_RANKS = (
    SLURM.replace("srun", "HF_MODEL=--hf-model\nsrun"),
    SLURM,
    SHELL,
    MPI,
    SLURM.replace("python -u", "apptainer exec --nv torch.sif python"),
    SLURM.replace("--ntasks-per-node=4", "--ntasks=8"),
    SLURM.replace(_SIZE, "=8"),
    SLURM.replace(_SIZE, "=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))"),
    # exported later, or in another way, or with all of its shell's
    SLURM.replace("srun", "NCCL_DEBUG=WARN\nexport MASTER_PORT NCCL_DEBUG\nsrun"),
    SLURM.replace("srun", "NCCL_DEBUG=WARN\ndeclare -x NCCL_DEBUG\nsrun"),
    SLURM.replace("srun", "NCCL_DEBUG=WARN\nsrun --export=ALL,NCCL_DEBUG=$NCCL_DEBUG"),
    SLURM.replace("export MASTER_ADDR", "set -a\nNCCL_DEBUG=WARN\nexport MASTER_ADDR"),
    SLURM.replace("srun", "NCCL_DEBUG=WARN srun"),
    # the script's own
    SLURM.replace("srun", "NCCL_EXIT=0\nif [ $NCCL_EXIT = 0 ]; then echo; fi\nsrun"),
    SLURM.replace("srun", "STEPS=3\nsrun"),
    # a program that starts the processes of its node itself
    SLURM.replace(_TASKS, "--ntasks-per-node=1").replace(_SIZE, "=$SLURM_NNODES"),
    # one node finds itself
    SLURM.replace("--nodes=2", "--nodes=1").replace(_HEAD, "MASTER_ADDR=localhost"),
    # what runs once prepares what ranks read
    SLURM.replace("srun", "python prepare.py\nsrun"),
    SLURM.replace("srun", "srun --nodes=1 --ntasks=1 python prepare.py\nsrun"),
    SLURM.replace("srun", "srun --ntasks=16 python prepare.py\nsrun"),
    SLURM.replace("srun", "srun python -m pip install -e .\nsrun"),
    # what is started otherwise
    SLURM.replace(_SRUN, "python prepare.py; srun ./start.sh"),
    SLURM.replace(_SRUN, "python prepare.py\nbash start.sh"),
    # one process of several GPUs
    SLURM.replace("--nodes=2", "--nodes=1").replace(_TASKS, "--ntasks-per-node=1").replace(_SRUN, "python"),
    # Hydra's hosts have no slots, and its ranks the environment
    MPI.replace(
        f"--host {_HOSTS} -x MASTER_ADDR -x MASTER_PORT -x NCCL_DEBUG", "-ppn 8 -hosts node1,node2"
    ),
    # more ranks than slots, or what the shell alone knows
    MPI.replace(_HOSTS, "node1,node2 --oversubscribe"),
    MPI.replace(_HOSTS, "node1,node2 --map-by :OVERSUBSCRIBE"),
    MPI.replace(_HOSTS, "node1,node2 --mca rmaps_base_oversubscribe 1"),
    MPI.replace(_HOSTS, '"$HOSTS"'),
    MPI.replace(" -x MASTER_PORT -x NCCL_DEBUG", ' "${passed[@]}"'),
    # a batch system starts the other hosts with what the script has
    MPI.replace(" -x MASTER_PORT -x NCCL_DEBUG", "").replace("export", "#SBATCH --nodes=2\nexport", 1),
    # ranks of another program
    "#!/usr/bin/env bash\nmpirun -np 64 ./solve input.nml\nmpirun -np 4 python plot.py\n",
)

#: Slurm tells Lightning's programs all
OF_LIGHTNING = """\
#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
srun python lit.py --epochs 3
"""
_LIT = """\
import lightning as L
from lightning.pytorch.plugins.environments import LightningEnvironment

NODES = 2
trainer = L.Trainer(devices=4, num_nodes=NODES, strategy="fsdp")
"""
_CALL = 'L.Trainer(devices=4, num_nodes=NODES, strategy="fsdp")'
#: programs beside the script
LIGHTNINGS = {
    "lit.py": _LIT,
    "one.py": _LIT.replace(_CALL, 'L.Trainer(devices="auto")'),
    "two.py": _LIT.replace(_CALL, "L.Trainer(devices=[0, 1], num_nodes=NODES)"),
    "older.py": "from pytorch_lightning import Trainer as T\nT(devices=8, num_nodes=2)\n",
    "fabric.py": "from lightning.fabric import Fabric\nfabric = Fabric(devices=2, num_nodes=2)\n",
    "all.py": _LIT.replace("devices=4", "devices=-1"),
    "told.py": _LIT.replace("num_nodes=NODES", "num_nodes=args.nodes").replace("devices=4, ", ""),
    "open.py": _LIT.replace(_CALL, "L.Trainer(**options)"),
    "other.py": _LIT.replace("devices=4", "devices=1, plugins=[LightningEnvironment()]"),
    "several.py": _LIT + "L.Trainer(devices=1)\n",
    "broken.py": _LIT + "(",
    "none.py": "import torch\ntorch.Trainer(devices=1)\n",
}


def _lit(what: str, old: str, new: str, code: str, program: str = "lit.py") -> Bad:
    return _bad(f"lightning {what}", OF_LIGHTNING.replace("lit.py", program), old, new, code)


LIGHTNING = (
    _lit("on fewer nodes", "--nodes=2", "--nodes=4", "PS568"),
    _lit("on one node", "", "", "PS568", "one.py"),
    _lit("on fewer devices", "", "", "PS568", "two.py"),
    _lit("of earlier versions", "", "", "PS568", "older.py"),
    _lit("by fabric", "", "", "PS568", "fabric.py"),
    _lit("of fewer tasks by srun", "srun ", "srun --ntasks-per-node=2 ", "PS568"),
    _lit("with tasks in all", "--ntasks-per-node=4", "--ntasks=8", "PS569"),
)
_GOOD = ("lit.py", "all.py", "told.py", "open.py", "other.py", "several.py", "broken.py", "none.py")
GOOD_LIGHTNING = (
    *(OF_LIGHTNING.replace("lit.py", name) for name in _GOOD),
    OF_LIGHTNING.replace("--nodes=2", "--nodes=4 --job-name=interactive"),
    OF_LIGHTNING.replace("srun", "srun --nodelist=n1"),
)
