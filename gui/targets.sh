#!/usr/bin/env bash
# Measures what the window promises: frames and moves at 5 and 50 million slices, opening, memory,
# first picture, cancel, idleness, and what the window adds to a build.
# gui/targets.sh [BUILD_FOLDER [--compile]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
lscpu | sed -n 's/^Model name: */machine: /p'
date +'date: %Y-%m-%d'
filter='.*'
# 50 million slices take 3 GB while they are made.
if [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 6 ]; then
  echo 'less than 6 GB are free: without the 50 million'
  filter='-of_50_million'
fi
echo 'asked: frame <= 8 ms CPU at 60 rows, <= 33 ms at 1,000; move <= 4 ms; open_gtr of 5 million'
echo '       <= 1 s; B/slice <= 24; window <= 0.5 s; cancel <= 300 ms; CPU of an idle window: none'
QT_QPA_PLATFORM=offscreen "$build/tests/bench/timeline_bench" --benchmark_filter="$filter"
# The program itself, on a run, left alone for five seconds: all of its threads, in nanoseconds.
trace=$(mktemp --suffix=.gtr)
"$build/sim/cli/gputwin" run gpt3_6_7b__a100_2x8__tp2_pp2_dp4_straggler --trace "$trace" >/dev/null
QT_QPA_PLATFORM=offscreen "$build/gui/gputwin-gui" "$trace" >/dev/null 2>&1 &
window=$!
used() { cat /proc/$window/task/*/schedstat | awk '{ ns += $1 } END { print ns }'; }
sleep 8
before=$(used)
sleep 5
echo "idle window: $(($(used) - before)) ns of CPU in 5 s"
kill $window
rm -f "$trace"
if [ "${2:-}" = --compile ]; then
  echo 'CPU time to build the window alone, without ccache:'
  find "$build/gui" -name '*.o' -delete
  time CCACHE_DISABLE=1 ninja -C "$build" gputwin-gui | tail -1
fi
