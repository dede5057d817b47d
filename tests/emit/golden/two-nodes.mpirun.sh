#!/usr/bin/env bash
# fsdp2 (dp_shard 16) on dgx-h100:2: 2 nodes of 8 ranks
# HOSTS=node1,node2,... ./mpirun.sh YOUR_SCRIPT.py [its arguments], with 2 nodes
set -euo pipefail

if (( $# == 0 )); then
    echo "usage: HOSTS=node,node mpirun.sh YOUR_SCRIPT.py [its arguments]" >&2
    exit 2
fi

# auto_parallelize reads the plan that this variable names: the one beside this script
PARASTRAT_PLAN="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/plan.toml"
export PARASTRAT_PLAN
if [[ ! -f "$PARASTRAT_PLAN" ]]; then
    echo "mpirun.sh: there is no $PARASTRAT_PLAN: put the plan beside mpirun.sh" >&2
    exit 2
fi

export OMP_NUM_THREADS=14
export NCCL_SOCKET_IFNAME=eth0

# inside of an allocation too: which node is the first decides where rank 0 is
if [[ -z "${HOSTS:-}" ]]; then
    echo "mpirun.sh: HOSTS is not set: give the names of all 2 nodes, with commas between them" >&2
    exit 2
fi
hosts=$HOSTS
IFS=, read -ra each <<< "$hosts"
if (( ${#each[@]} != 2 )); then
    echo "mpirun.sh: the plan is for 2 nodes, HOSTS names ${#each[@]}" >&2
    exit 2
fi
# ranks find each other there, also where MPI carries nothing but their start; jobs of one node on ports of
# their own
export MASTER_ADDR="${MASTER_ADDR:-${hosts%%,*}}"
export MASTER_PORT="${MASTER_PORT:-$((20000 + $$ % 10000))}"
# this shell's interpreter, by the path that it has on all nodes
for program in "${PYTHON:=python}" mpirun; do
    if ! command -v "$program" > /dev/null; then
        echo "mpirun.sh: there is no $program on the PATH" >&2
        exit 2
    fi
done
python=$(command -v "$PYTHON")

case "$(mpirun --version 2>&1)" in
    *"Open MPI"*)
        passed=()
        for name in PARASTRAT_PLAN MASTER_ADDR MASTER_PORT OMP_NUM_THREADS NCCL_SOCKET_IFNAME LD_LIBRARY_PATH PYTHONPATH; do
            if [[ -n "${!name:-}" ]]; then passed+=(-x "$name"); fi
        done
        # ranks of a node have neighbouring numbers, as meshes take it; and are not bound to one core each
        exec mpirun -n 16 --host "${hosts//,/:8,}:8" --map-by slot --bind-to none \
            "${passed[@]}" "$python" "$@"
        ;;
    # MPICH, Intel MPI and others with Hydra, which hands the environment on
    *HYDRA* | *Hydra* | *"Intel(R) MPI"* | *MPICH*)
        exec mpirun -genvall -n 16 -ppn 8 -hosts "$hosts" "$python" "$@"
        ;;
    *)
        echo "mpirun.sh: this mpirun is neither Open MPI's nor one with Hydra, as MPICH's and Intel's" >&2
        exit 2
        ;;
esac
