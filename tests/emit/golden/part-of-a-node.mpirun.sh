#!/usr/bin/env bash
# fsdp2 (dp_shard 2) on dgx-h100:1: 1 node of 2 ranks
# ./mpirun.sh YOUR_SCRIPT.py [its arguments]
set -euo pipefail

if (( $# == 0 )); then
    echo "usage: mpirun.sh YOUR_SCRIPT.py [its arguments]" >&2
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

hosts=localhost
# ranks find each other there, also where MPI carries nothing but their start; jobs of one node on ports of
# their own
export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
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
        exec mpirun -n 2 --host "${hosts//,/:2,}:2" --map-by slot --bind-to none \
            "${passed[@]}" "$python" "$@"
        ;;
    # MPICH, Intel MPI and others with Hydra, which hands the environment on
    *HYDRA* | *Hydra* | *"Intel(R) MPI"* | *MPICH*)
        exec mpirun -genvall -n 2 -ppn 2 -hosts "$hosts" "$python" "$@"
        ;;
    *)
        echo "mpirun.sh: this mpirun is neither Open MPI's nor one with Hydra, as MPICH's and Intel's" >&2
        exit 2
        ;;
esac
