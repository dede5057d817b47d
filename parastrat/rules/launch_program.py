"""PS674 to PS677, PS538: what launchers run, where their options stand, and the GPUs they are shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import count_of, processes_of, variable_in
from parastrat.rules.launchers import DEEPSPEED, launcher_of
from parastrat.rules.rule import file_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_RUNNER = "https://github.com/deepspeedai/DeepSpeed/blob/edaa722/deepspeed/launcher/runner.py"
_FORMAT = ConfigFormat.SCRIPT

_INTERPRETER = re.compile(r"(?:.*/)?python[\d.]*")
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "srun", "mpirun"})
_GPUS = re.compile(r"\d+(?:,\d+)*")
#: variables that hold one number, which is another for each task or process
_OF_RANKS = frozenset(
    {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"}
    | {"SLURM_LOCALID", "SLURM_PROCID"}
)
#: options whose names scripts do not use for something else
_OF_LAUNCHERS = {
    "torchrun": (
        "nnodes",
        "nproc-per-node",
        "node-rank",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "standalone",
    ),
    "accelerate": ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port"),
    "deepspeed": ("num_gpus", "hostfile", "master_port"),
}


@file_rule("PS674", Severity.ERROR, _FORMAT, source=_TORCHRUN)
def launchers_run_a_script(file: ConfigFile) -> Iterator[Hit]:
    """A launcher is told of a Python script, or of a module.

    It starts Python itself: of `torchrun python train.py` and `torchrun accelerate launch` it looks for a
    script that is called python or accelerate. What stands behind -m is a module's name, with dots and
    without .py. With no script it stops. --no-python (--no_python) runs any program.
    """
    launcher, program = launcher_of(file), file.get("own.program")
    options = file.get(launcher.table) or {}
    bare = {name.replace("-", "_") for name in options}
    if program is None or file.get("started.options") is not None or bare & {"help", "no_python", "h"}:
        return
    if FILLED_IN.search(program):  # or redirected
        return
    is_module = bool(bare & {"module", "m"})
    if not program:
        message, fix = f"{launcher.command} has nothing to run", "add the script behind the options"
    elif _INTERPRETER.fullmatch(program) or program.rpartition("/")[2] in _LAUNCHERS:
        message = f"{launcher.command} takes {program} for the script"
        fix = f"remove {program}: {launcher.command} starts Python on the script itself"
    elif is_module and (program.endswith(".py") or "/" in program):
        message = f"{program} behind -m is no module's name"
        name = program.removesuffix(".py").removeprefix("./").replace("/", ".")
        fix = f"write -m {name}, or {program} without -m"
    else:
        return
    yield Hit(message=message, fix=fix, key="own")


@file_rule("PS675", Severity.WARNING, _FORMAT, source=_TORCHRUN)
def options_stand_before_the_script(file: ConfigFile) -> Iterator[Hit]:
    """What stands behind the script is the script's own.

    The launcher reads its options up to the script's name, and starts with its defaults what is said
    behind: torchrun one process on one node.
    """
    launcher, behind = launcher_of(file), file.get("own.options") or {}
    before = file.get(launcher.table) or {}
    if file.get("started.options") is not None or not file.get("own.program"):
        return
    names = {name.replace("_", "-") if launcher.table == "torchrun" else name: name for name in behind}
    # beside a choice of GPUs deepspeed takes no number of them, so that it is the script's
    own = {"num_gpus"} if before.keys() & {"include", "exclude"} else set()
    for option in _OF_LAUNCHERS[launcher.table]:
        if option in names and option not in {*before, *own}:
            yield Hit(
                message=f"--{names[option]} behind the script: {launcher.command} does not read it",
                fix=f"write {launcher.command} --{names[option]} ... {file.get('own.program')}",
                key="own",
            )


@file_rule(
    "PS676",
    Severity.ERROR,
    _FORMAT,
    source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
    covers=("PIT511",),
)
def processes_have_visible_gpus(file: ConfigFile) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES names a GPU for every process of the node.

    Each process takes the GPU of its local rank among those that are shown. Of more processes than GPUs the
    last ones stop ("invalid device ordinal").
    """
    stated, launcher, processes = file.get("started.gpus"), launcher_of(file), processes_of(file)
    # accelerate shows those of --gpu_ids in their place
    others = file.get("accelerate.cpu") is not None or file.get("accelerate.gpu_ids") not in (None, "all")
    if launcher is DEEPSPEED or not _GPUS.fullmatch(str(stated)) or others:
        return
    if launcher.in_all and file.get("accelerate.num_machines") in (None, "1"):
        processes = count_of(file, "accelerate.num_processes")
    gpus = str(stated).count(",") + 1
    if processes is not None and processes > gpus:
        yield Hit(
            message=f"{processes} processes on a node, and CUDA_VISIBLE_DEVICES={stated} shows "
            f"{counted(gpus, 'GPU')}",
            fix=f"write --{launcher.processes} {gpus}, or show more GPUs",
            key=f"{launcher.table}.{launcher.processes}",
        )


@file_rule(
    "PS538",
    Severity.ERROR,
    _FORMAT,
    source="https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables",
    covers=("PIT713",),
)
def ranks_choose_among_all_gpus(file: ConfigFile) -> Iterator[Hit]:
    """A launcher is shown all GPUs of the node, and each process chooses one by its local rank.

    Where CUDA_VISIBLE_DEVICES is the number of a task or a rank, the launcher and all its processes see one
    GPU, which is number 0 to them. The process of local rank 1 asks for another ("invalid device ordinal").
    """
    launcher, processes = launcher_of(file), processes_of(file)
    exported = file.get("env.CUDA_VISIBLE_DEVICES") if file.get("started.by") == "script" else None
    stated = str(file.get("started.gpus") or exported)
    others = file.get("accelerate.cpu") is not None or file.get("accelerate.gpu_ids") not in (None, "all")
    if launcher is DEEPSPEED or others or variable_in(stated) not in _OF_RANKS:
        return
    if processes is not None and processes > 1:
        yield Hit(
            message=f"CUDA_VISIBLE_DEVICES={stated} is one GPU, and {launcher.command} starts "
            f"{processes} processes",
            fix=f"remove it: {launcher.command} tells each process its local rank, by which it chooses",
            key=f"{launcher.table}.{launcher.processes}",
        )


@file_rule("PS677", Severity.WARNING, _FORMAT, source=_RUNNER)
def deepspeed_chooses_gpus_itself(file: ConfigFile) -> Iterator[Hit]:
    """Deepspeed reads CUDA_VISIBLE_DEVICES where no option chooses.

    Beside --include, --exclude, --num_nodes or --num_gpus it passes over it, and takes the first GPUs: on a
    shared machine those of somebody else.
    """
    stated = str(file.get("started.gpus"))
    options = file.get("deepspeed") or {}
    chosen = [name for name in ("include", "exclude", "num_gpus") if options.get(name)]
    first = [str(gpu) for gpu in range(count_of(file, "deepspeed.num_gpus") or 0)]
    is_same = bool(first) and stated.split(",")[: len(first)] == first
    is_same = is_same or options.get("include") == f"localhost:{stated}"
    if _GPUS.fullmatch(stated) and chosen and not is_same and file.get("deepspeed.hostfile") is None:
        yield Hit(
            message=f"CUDA_VISIBLE_DEVICES={stated} beside --{chosen[0]}: deepspeed does not read it",
            fix=f"write --include localhost:{stated} in place of both",
            key=f"deepspeed.{chosen[0]}",
        )
