"""Batch scripts that ask Slurm for a signal which nobody answers, and some in which somebody does."""

from __future__ import annotations

from check.bad_configs import Bad

#: the training answers
TO_STEPS = """\
#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --signal=USR1@120
srun torchrun --standalone --nproc-per-node 8 train.py
"""
#: the batch shell answers
TO_SHELL = """\
#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
trap 'touch stop' USR1
srun torchrun --standalone --nproc-per-node 8 train.py &
wait
"""
_TRAP, _HELD = "trap 'touch stop' USR1\n", "train.py &\nwait\n"


def _bad(what: str, base: str, old: str, new: str) -> Bad:
    assert old in base
    return Bad(what=f"signal: {what}", text=base.replace(old, new), suffix=".sbatch", code="PS537")


SIGNALS = (
    _bad("to no step", TO_STEPS, "srun ", ""),
    _bad("to no step, by its number", TO_STEPS.replace("srun ", ""), "USR1", "10"),
    _bad("to a trap that does not get it", TO_SHELL, "B:USR1", "SIGUSR1"),
    _bad("to a trap, by its number", TO_SHELL.replace("stop' USR1", "stop' 10"), "B:USR1", "USR1"),
    _bad("to a shell without a trap", TO_SHELL, _TRAP, ""),
    _bad("to a shell without a trap, in time", TO_SHELL.replace(_TRAP, ""), "B:USR1@120", "B:TERM"),
    _bad("to a shell with an environment", TO_SHELL, _TRAP, "source /opt/conda/bin/activate train\n"),
    _bad("to a shell that waits", TO_SHELL, _HELD, "train.py\n"),
    _bad("to a shell that waits here", TO_SHELL.replace("srun ", ""), _HELD, "train.py 2>&1 | tee log\n"),
)
GOOD_SIGNALS = (
    TO_STEPS,
    TO_SHELL,
    TO_SHELL.replace("srun ", ""),
    TO_SHELL.replace("stop' USR1", "stop' SIGTERM SIGUSR1"),
    TO_STEPS.replace("#SBATCH --signal=USR1@120\n", ""),
    TO_STEPS.replace("USR1@120", "$SIGNAL"),
    # another launch is a step
    TO_STEPS + "torchrun --standalone --nproc-per-node 8 evaluate.py\n",
    # deepspeed may start it through srun
    TO_STEPS.replace("srun torchrun --standalone --nproc-per-node 8", "deepspeed --launcher slurm"),
    # the trap is of what else ends a job, or of the steps, which run this script again
    TO_SHELL.replace("B:USR1", "USR2"),
    TO_SHELL.replace("B:USR1", "TERM").replace("stop' USR1", "stop' TERM"),
    TO_SHELL.replace("B:USR1", "USR1").replace("wait", 'srun bash "$0"; wait'),
    # the shell's place is taken, or its traps stand elsewhere
    TO_SHELL.replace(_TRAP, "").replace("srun ", "exec srun ").replace(_HELD, "train.py\n"),
    TO_SHELL.replace(_TRAP, "source traps.sh\n").replace(_HELD, "train.py\n"),
    TO_SHELL.replace(_TRAP, "cd a && . traps.sh\n").replace(_HELD, "train.py\n"),
    # shells live on with these
    TO_SHELL.replace(_TRAP, "").replace("USR1", "CONT"),
    TO_SHELL.replace("touch stop' USR1", "touch stop' EXIT").replace(_HELD, "train.py\n"),
)
