#!/usr/bin/env bash
# fsdp2 (dp_shard 16) on dgx-h100:2: 2 nodes of 8 ranks
# on each of the 2 nodes: HEAD=first-node ./run.sh YOUR_SCRIPT.py [its arguments]
set -euo pipefail

if (( $# == 0 )); then
    echo "usage: HEAD=node run.sh YOUR_SCRIPT.py [its arguments]" >&2
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

# without the head's name every node would wait for the others at its own door
if [[ -z "${HEAD:-}" ]]; then
    echo "run.sh: HEAD is not set: give the first node's name or address, the same on all 2 nodes" >&2
    exit 2
fi

exec torchrun --nnodes 2 --nproc-per-node 8 \
    --rdzv-id "${RDZV_ID:-parastrat}" --rdzv-backend c10d --rdzv-endpoint "$HEAD:${RDZV_PORT:-29500}" \
    "$@"
