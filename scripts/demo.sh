#!/usr/bin/env bash
# From nothing to a model that trains: installs parastrat, asks it for a plan for Llama 3.1 70B on 64 GPUs,
# then plans a small GPT for this machine and trains it under that plan.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$("$root/scripts/setup.sh")
plan=$(mktemp -d)/plan.toml
trap 'rm -rf "$(dirname "$plan")"' EXIT

show() {
    printf '\n$ %s\n\n' "$*"
    "$@"
}

cd "$root"
PATH=$(dirname "$python"):$PATH
show parastrat recommend llama-3.1-70b --on dgx-h100:8
show parastrat recommend examples/train_gpt.py:build --on auto --ranks-per-node 2 --strategy fsdp2 \
    --seq-len 128 --global-batch 32 --micro-batch 16 -o "$plan"
show parastrat run "$plan" examples/train_gpt.py --steps 60
