#!/usr/bin/env bash
# fsdp2 (dp_shard 8) on dgx-h100:1: 1 node of 8 ranks
# ./run.sh YOUR_SCRIPT.py [its arguments]
set -euo pipefail

if (( $# == 0 )); then
    echo "usage: run.sh YOUR_SCRIPT.py [its arguments]" >&2
    exit 2
fi

# auto_parallelize reads the plan that this variable names: the one beside this script
PARASTRAT_PLAN="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/plan.toml"
export PARASTRAT_PLAN
if [[ ! -f "$PARASTRAT_PLAN" ]]; then
    echo "run.sh: there is no $PARASTRAT_PLAN: put the plan beside run.sh" >&2
    exit 2
fi

export OMP_NUM_THREADS=14
export NCCL_SOCKET_IFNAME=eth0
# the ranks' store apart from the agents': else a restart often finds the dead one's keys
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun --standalone --nproc-per-node 8 "$@"
