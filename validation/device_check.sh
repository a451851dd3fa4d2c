#!/bin/sh
# On a machine with a GPU: builds the program and the check, times and checks kernels, runs the
# GPU's tests, then whole plans on the GPU and on the processor, whose losses must agree. At most
# ten minutes; needs what ./bootstrap.sh deps installs, nvcc, cuBLASLt and NCCL. CSVs stay in the
# folder given (default out/device_check); the table of runs is printed last. Exit code 1: something
# is wrong; 77: there is no GPU.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/device_check}
begin=$(date +%s)
# Seconds until ten minutes are over, at least one; what runs longer is ended.
left() {
  seconds=$((590 - $(date +%s) + begin))
  echo $((seconds > 0 ? seconds : 1))
}
mkdir -p "$out"
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 |
  tr -d .) || capability=
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit \
  --format=csv > "$out/machine.csv" 2>/dev/null || echo "no nvidia-smi" > "$out/machine.csv"
cmake --preset release -DGPUTWIN_CUDA=ON -DGPUTWIN_BENCH=OFF -DGPUTWIN_GUI=OFF \
  ${capability:+-DGPUTWIN_CUDA_ARCHITECTURES="$capability"} \
  ${capability:+-DGPUTWIN_CODECS_CUDA_ARCHITECTURES="$capability"}
timeout "$(left)" cmake --build --preset release --target gputwin gputwin_device_check \
  validation_codecs_cuda_test
# `code || wrong`: what fails is told at the end, after everything has run.
failed=0
timeout "$(left)" build/release/validation/executors/cuda/gputwin_device_check "$out" || failed=$?
if [ "$failed" = 77 ]; then exit 77; fi
timeout "$(left)" build/release/tests/unit/validation/validation_codecs_cuda_test || failed=1

# The loss that a run prints, and the iteration: `name executor`.
measure() {
  scenario=validation/executors/cuda/check_runs/$1.json
  timeout "$(left)" build/release/sim/cli/gputwin run "$scenario" --executor "$2" --repeats 2 \
    --json > "$out/$1.$2.json" 2> "$out/$1.$2.txt" || return 1
  number='\([0-9.eE+-]*\)'
  loss=$(sed -n "s/.*loss $number;.*/\1/p" "$out/$1.$2.json" | head -n 1)
  time=$(sed -n "s/.*\"iteration_time_s\": *$number.*/\1/p" "$out/$1.$2.json" | head -n 1)
  echo "${loss:-none} ${time:-none}"
}

columns=run,loss_cuda,loss_host,bound,iteration_cuda_s,iteration_host_s,verdict
echo "$columns" > "$out/runs.csv.part"
for path in validation/executors/cuda/check_runs/*.json; do
  name=$(basename "$path" .json)
  cuda=$(measure "$name" cuda) || cuda="none none"
  host=$(measure "$name" host) || host="none none"
  # Two steps of Adam on: F32 differs by the order of sums, BF16 by 8 bits of mantissa.
  bound=0.001
  if grep -q bf16 "$path"; then bound=0.01; fi
  echo "$cuda $host" | awk -v name="$name" -v bound="$bound" '{
    off = $1 - $3; if (off < 0) off = -off
    good = $1 != "none" && $3 != "none" && $1 + 0 == $1 && off <= bound
    print name "," $1 "," $3 "," bound "," $2 "," $4 "," (good ? "ok" : "WRONG")
  }' >> "$out/runs.csv.part"
  tail -n 1 "$out/runs.csv.part" | grep -q 'ok$' || { failed=1; cat "$out/$name".*.txt; }
done
mv "$out/runs.csv.part" "$out/runs.csv"
column -s, -t "$out/runs.csv" 2>/dev/null || cat "$out/runs.csv"
exit "$failed"
