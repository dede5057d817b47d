"""A shell script around mpirun: a process for each rank, without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.emit.shell import SCRIPT_USAGE, check_applied, check_ranks, head, variables
from parastrat.emit.text_file import TextFile
from parastrat.launch import FIRST_PORT, PORTS

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.launch import Launch

_SCRIPT = """\
{head}
{variables}

{hosts}
# ranks find each other there, also where MPI carries nothing but their start; jobs of one node on ports of
# their own
export MASTER_ADDR="${{MASTER_ADDR:-{first}}}"
export MASTER_PORT="${{MASTER_PORT:-$(({first_port} + $$ % {ports}))}}"
# this shell's interpreter, by the path that it has on all nodes
for program in "${{PYTHON:=python}}" mpirun; do
    if ! command -v "$program" > /dev/null; then
        echo "mpirun.sh: there is no $program on the PATH" >&2
        exit 2
    fi
done
python=$(command -v "$PYTHON")

case "$(mpirun --version 2>&1)" in
    *"Open MPI"*)
        passed=()
        for name in {names} LD_LIBRARY_PATH PYTHONPATH; do
            if [[ -n "${{!name:-}}" ]]; then passed+=(-x "$name"); fi
        done
        # ranks of a node have neighbouring numbers, as meshes take it; and are not bound to one core each
        exec mpirun -n {world} --host "${{hosts//,/:{ranks},}}:{ranks}" --map-by slot --bind-to none \\
            "${{passed[@]}}" "$python" "$@"
        ;;
    # MPICH, Intel MPI and others with Hydra, which hands the environment on
    *HYDRA* | *Hydra* | *"Intel(R) MPI"* | *MPICH*)
        exec mpirun -genvall -n {world} -ppn {ranks} -hosts "$hosts" "$python" "$@"
        ;;
    *)
        echo "mpirun.sh: this mpirun is neither Open MPI's nor one with Hydra, as MPICH's and Intel's" >&2
        exit 2
        ;;
esac
"""

_ONE_NODE = "hosts=localhost"

_NODES = """\
# inside of an allocation too: which node is the first decides where rank 0 is
if [[ -z "${{HOSTS:-}}" ]]; then
    echo "mpirun.sh: HOSTS is not set: give the names of all {nodes} nodes, with commas between them" >&2
    exit 2
fi
hosts=$HOSTS
IFS=, read -ra each <<< "$hosts"
if (( ${{#each[@]}} != {nodes} )); then
    echo "mpirun.sh: the plan is for {nodes} nodes, HOSTS names ${{#each[@]}}" >&2
    exit 2
fi"""


def emit(case: Case) -> tuple[TextFile, ...]:
    """Return ``mpirun.sh`` for Open MPI, MPICH or Intel MPI; it expects ``plan.toml`` beside it.

    Ranks meet over TCP as under torchrun, so that any backend goes; the backend ``mpi`` as well, if torch
    was built with it.

    Raises:
        EmitError: the launch does not go with this plan, or ``auto_parallelize`` does not apply it.
    """
    check_ranks(case)
    check_applied(case)
    launch = case.launch
    call = "mpirun.sh" if launch.nodes == 1 else "HOSTS=node,node mpirun.sh"
    text = _SCRIPT.format(
        head=head(case, "mpirun.sh", _usage(launch), call),
        variables="\n".join(variables(launch)),
        hosts=_ONE_NODE if launch.nodes == 1 else _NODES.format(nodes=launch.nodes),
        first="127.0.0.1" if launch.nodes == 1 else "${hosts%%,*}",
        names=" ".join(["PARASTRAT_PLAN", "MASTER_ADDR", "MASTER_PORT", *launch.env]),
        first_port=FIRST_PORT,
        ports=PORTS,
        ranks=launch.ranks_per_node,
        world=launch.world_size,
    )
    return (TextFile(path="mpirun.sh", text=text, executable=True),)


def _usage(launch: Launch) -> str:
    if launch.nodes == 1:
        return f"./mpirun.sh {SCRIPT_USAGE}"
    return f"HOSTS=node1,node2,... ./mpirun.sh {SCRIPT_USAGE}, with {launch.nodes} nodes"
