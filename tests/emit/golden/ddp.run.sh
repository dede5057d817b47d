#!/usr/bin/env bash
# ddp (dp_replicate 8) on dgx-h100:1: 1 node of 8 ranks
# ./run.sh YOUR_SCRIPT.py [its arguments]
set -euo pipefail

if (( $# == 0 )); then
    echo "usage: run.sh YOUR_SCRIPT.py [its arguments]" >&2
    exit 2
fi

export OMP_NUM_THREADS=14
export NCCL_SOCKET_IFNAME=eth0
# what Accelerator() accumulates where a script does not say; Trainer has an argument of its own
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4

config="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/accelerate.yaml"
exec accelerate launch --config_file "$config" "$@"
