#!/usr/bin/env bash
# hsdp (dp_replicate 2 x dp_shard 8) on dgx-h100:2: 2 nodes of 8 ranks
# on each of the 2 nodes: HEAD=first-node ./run.sh YOUR_SCRIPT.py [its arguments]
set -euo pipefail

if (( $# == 0 )); then
    echo "usage: HEAD=node run.sh YOUR_SCRIPT.py [its arguments]" >&2
    exit 2
fi

export OMP_NUM_THREADS=14
export NCCL_SOCKET_IFNAME=eth0
# what Accelerator() accumulates where a script does not say; Trainer has an argument of its own
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2

config="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/accelerate.yaml"
# without the head's name every node would wait for the others at its own door
if [[ -z "${HEAD:-}" ]]; then
    echo "run.sh: HEAD is not set: give the first node's name or address, the same on all 2 nodes" >&2
    exit 2
fi

exec accelerate launch --config_file "$config" --num_machines 2 --num_processes 16 \
    --rdzv_backend c10d --main_process_ip "$HEAD" --main_process_port "${RDZV_PORT:-29500}" "$@"
