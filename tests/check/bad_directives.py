"""Batch scripts with words that Slurm does not know or read, and some that it takes as they are."""

from __future__ import annotations

from check.bad_configs import Bad

JOB = """\
#!/usr/bin/env bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --exclusive
srun --ntasks=1 torchrun --standalone --nproc-per-node 8 train.py
"""


def _bad(what: str, old: str, new: str, code: str) -> Bad:
    assert old in JOB
    return Bad(what=f"directive: {what}", text=JOB.replace(old, new), suffix=".sbatch", code=code)


DIRECTIVES = (
    _bad("misspelt", "--exclusive", "--exlusive", "PS601"),
    _bad("misspelt, with a value", "--nodes=1", "--node-list=n1", "PS601"),
    _bad("misspelt, its value apart", "--nodes=1", "--gpu-per-node 8", "PS601"),
    _bad("beginning of several options", "--nodes=1", "--gpu=8", "PS601"),
    _bad("beginning of two options", "--exclusive", "--excl", "PS601"),
    _bad("underscores", "--job-name", "--job_name", "PS601"),
    _bad("a letter of nobody", "--exclusive", "-P", "PS609"),
    _bad("a name of another scheduler", "--exclusive", "--walltime=1:00:00", "PS609"),
    _bad("renamed", "--exclusive", "--workdir=/scratch", "PS608"),
    _bad("gone", "--exclusive", "--checkpoint=60", "PS608"),
    _bad("one hyphen", "--nodes=1", "-nodes=1", "PS601"),
    _bad("a dash", "--nodes=1", "\N{EN DASH}nodes=1", "PS601"),
    _bad("no hyphens", "--nodes=1", "nodes=1", "PS549"),
    _bad("a remark without its sign", "--nodes=1", "--nodes=1 one", "PS549"),
    _bad("a value that wants its sign", "--exclusive", "--exclusive user", "PS549"),
    _bad("letters of the mark", "#SBATCH --nodes", "#SBTACH --nodes", "PS550"),
    _bad("small letters", "#SBATCH --nodes", "#sbatch --nodes", "PS550"),
    _bad("indented", "#SBATCH --nodes", "  #SBATCH --nodes", "PS550"),
    _bad("a letter with an equals sign", "--nodes=1", "-N=1", "PS552"),
    _bad("of srun, a letter with an equals sign", "--ntasks=1", "-n=1", "PS552"),
    _bad("nodes as a word", "--nodes=1", "--nodes=one", "PS551"),
    _bad("no tasks", "--nodes=1", "--nodes=1 --ntasks-per-node=0", "PS551"),
    _bad("half a core", "--nodes=1", "--nodes=1 -c 0.5", "PS551"),
    _bad("hours with a letter", "--nodes=1", "--nodes=1 --time=24h", "PS551"),
    _bad("time with days and colons", "--nodes=1", "--nodes=1 -t 1:00:00:00", "PS551"),
    _bad("gibibytes", "--nodes=1", "--nodes=1 --mem=200GiB", "PS551"),
    _bad("part of a gigabyte", "--nodes=1", "--nodes=1 --mem-per-cpu=1.5G", "PS551"),
    _bad("all memory", "--nodes=1", "--nodes=1 --mem=all", "PS551"),
    _bad("of srun, tasks as a word", "--ntasks=1", "--ntasks one", "PS551"),
    _bad("of srun, misspelt", "--ntasks=1", "--ntask=1 --cpu-binds=none", "PS601"),
    _bad("of srun, of sbatch alone", "--ntasks=1", "--array=0-3", "PS609"),
    _bad("of srun, one of many", "--ntasks=1", "-N1 -n 1 -u --exclusve -l", "PS601"),
)
GOOD_DIRECTIVES = (
    JOB,
    # letters, beginnings, values apart and behind an equals sign, remarks, quotes
    JOB.replace("--job-name=train", "-p gpu -t1:00:00 -A x -C 'a&b' -W -s -k -vv # --nodse"),
    JOB.replace(
        "--job-name=train", '--exclusi --cpus-per-t 8 --nice --mail-type=END,FAIL --comment "of a b"'
    ),
    JOB.replace("#SBATCH --exclusive", "#SBATCH\n#SBATCH--exclusive#all of it\n##SBATCH --nodse=3"),
    JOB.replace("--exclusive", "--exclusive=user --requeue --oom-kill-step --tasks-per-node=1"),
    JOB.replace("--nodes=1", "--nodes=1-1 --time-min=30 -t 2-12 --mem=0 --mincpus 64"),
    JOB.replace("--nodes=1", "-N1 --time=1-00:00:00 --mem-per-cpu=4GB --threads-per-core=1"),
    JOB.replace("--nodes=1", "-N 1 --time=UNLIMITED --mem=1T --ntasks-per-node={{ tasks }}"),
    # plugins
    JOB.replace(
        "--job-name=train", "--image=docker:x --container-image=a --no-container-mount-home --uenv=p"
    ),
    # what is filled in, and other parts of a job
    JOB.replace("--exclusive", "--exclusive {{ more }} {% if x %}--mem=0{% endif %}"),
    JOB.replace("--job-name=train", "--time={{ hours }}:00:00").replace("--nodes=1", "<nodes>"),
    JOB.replace("#SBATCH --exclusive", "#SBATCH --exclusive\n#SBATCH hetjob"),
    # remarks
    JOB.replace("#SBATCH --job", "#Note - all\n#SBATCH: none\n# SBATCH --job"),
    # srun's own
    JOB.replace("--ntasks=1", "-n1 -l -u -K1 -W 60 --mpi=pmix_v3 --cpu_bind=none --overlap --jobid $J"),
    JOB.replace("--ntasks=1", "--ntasks=1 --het-group=0 --kill-on-bad-exit --export ALL,A=1 env A=1"),
    JOB.replace("--ntasks=1", "$SRUN_OPTIONS --no-option-of-anybody"),
)
