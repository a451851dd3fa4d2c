#!/bin/sh
# Builds the GPU's side of real runs on a GPU machine, runs it, and prints its tables; the CSVs stay
# in the folder given (default out/device_check). A few minutes; needs nvcc, cuBLASLt, NCCL, fmt.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/device_check}
mkdir -p "$out"
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 |
  tr -d .) || capability=
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit \
  --format=csv > "$out/machine.csv" 2>/dev/null || echo "no nvidia-smi" > "$out/machine.csv"
cmake --preset release -DGPUTWIN_CUDA=ON -DGPUTWIN_CUDA_ARCHITECTURES="${capability:-80;90}"
timeout 300 cmake --build --preset release --target gputwin_device_check
timeout 240 build/release/validation/executors/cuda/gputwin_device_check "$out"
