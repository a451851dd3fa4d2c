#!/usr/bin/env bash
# Takes the pictures of README.md from the program as it is: gui/screenshots.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/dev}
out=gui/screenshots
traces=$(mktemp -d)
trap 'rm -rf "$traces"' EXIT
export QT_QPA_PLATFORM=${QT_QPA_PLATFORM:-offscreen}
mkdir -p "$out"

readonly SMALL=gpt3_6_7b__a100_2x8__tp2_pp2_dp4_straggler
gputwin() { "$build/sim/cli/gputwin" "$@" >/dev/null; }
gui() { timeout 120 "$build/gui/gputwin-gui" --size 1600x960 --quit "$@"; }

gputwin run "$SMALL" --set 'what_if.stragglers=[]' --trace "$traces/even.gtr"
gputwin run "$SMALL" --trace "$traces/straggler.gtr"
gui --scenario "$SMALL" --command critical-path "$traces/straggler.gtr" \
  --command next-slice --command zoom-in --command zoom-in --picture "$out/timeline.png"
gui --scenario "$SMALL" --command compare "$traces/even.gtr" "$traces/straggler.gtr" \
  --picture "$out/compare.png"
gui --light --command memory "$traces/straggler.gtr" --picture "$out/memory.png"
gui --command topology "$traces/straggler.gtr" --picture "$out/topology.png"
gui --picture "$out/start.png"
