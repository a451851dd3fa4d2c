#!/usr/bin/env bash
# Drives gputwin-gui on a virtual screen as a person would, by keys: opens a scenario, runs it,
# changes the degree of tensor parallelism, runs again, zooms, selects, compares, exports; looks at
# pictures of the screen after each step.
# tests/gui/end_to_end.sh BUILD_FOLDER [FOLDER_FOR_PICTURES]; exit code 77: not here, and why.
set -euo pipefail
build=$(cd "${1:?usage: $0 BUILD_FOLDER [FOLDER_FOR_PICTURES]}" && pwd)
readonly PATIENCE=${GPUTWIN_E2E_PATIENCE_S:-240}

for program in Xvfb xdotool import compare identify; do
  if ! command -v "$program" >/dev/null; then
    echo "skipped: $program is not installed (apt-get install xvfb xdotool imagemagick)"
    exit 77
  fi
done
if [ ! -x "$build/gui/gputwin-gui" ]; then
  echo "skipped: $build/gui/gputwin-gui is not built"
  exit 77
fi

work=$(mktemp -d)
pictures=${2:-$work/pictures}
mkdir -p "$pictures"
# Only processes that this script started are ended, by their numbers.
screen= gui=
finish() {
  if [ -n "$gui" ]; then kill "$gui" 2>/dev/null || true; fi
  if [ -n "$screen" ]; then kill "$screen" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT

fail() {
  echo "FAILED: $*" >&2
  sed 's/^/  gputwin-gui: /' "$work/log" >&2 || true
  exit 1
}

# wait_for WHAT COMMAND…: until the command succeeds.
wait_for() {
  local what=$1 end=$((SECONDS + PATIENCE))
  shift
  until "$@"; do
    [ -z "$gui" ] || kill -0 "$gui" 2>/dev/null || fail "the window ended before $what"
    [ "$SECONDS" -lt "$end" ] || fail "waited too long for $what"
    sleep 0.3
  done
}

key() { xdotool key --clearmodifiers --delay 40 "$@"; }
title() { xdotool getwindowname "$window" 2>/dev/null; }
shoot() { import -window root -depth 8 "$pictures/$1.png"; }
# Share of pixels, in percent, that differ between two pictures, cut down to a whole number.
changed() {
  local pixels
  pixels=$(compare -metric AE -fuzz 3% "$pictures/$1.png" "$pictures/$2.png" null: 2>&1) || true
  awk -v n="${pixels%% *}" 'BEGIN { printf "%.2f", 100 * n / (1600 * 1000) }'
}
# expect_change A B LEAST: at least so many percent of the screen changed.
expect_change() {
  local share
  share=$(changed "$1" "$2")
  awk -v s="$share" -v least="$3" 'BEGIN { exit !(s >= least) }' ||
    fail "$1 to $2: only $share % of the screen changed"
  echo "ok: $1 to $2 changed $share % of the screen"
}
# Waits until the screen has stood still for half a second.
settle() {
  shoot .before
  for _ in $(seq 100); do
    sleep 0.5
    shoot .after
    [ "$(changed .before .after)" = 0.00 ] && return
    cp "$pictures/.after.png" "$pictures/.before.png"
  done
  fail "the screen never comes to rest"
}
picture() {
  settle
  shoot "$1"
}

# The server picks a free number and tells it.
Xvfb -displayfd 3 -screen 0 1600x1000x24 -nolisten tcp 3>"$work/display" 2>"$work/xvfb" &
screen=$!
wait_for "the screen" test -s "$work/display"
export DISPLAY=":$(cat "$work/display")"
export QT_QPA_PLATFORM=xcb XDG_CONFIG_HOME="$work" QT_SCALE_FACTOR=1
export GPUTWIN_BINARY="$build/sim/cli/gputwin" TMPDIR="$work"

cd "$work"
cat >scenario.json <<'TEXT'
{
  "schema": 1, "name": "end to end", "model": "gpt3_6_7b", "cluster": "a100_2x8",
  "job": { "sequence": 2048, "global_batch": 16 },
  "layout": { "tp": 2, "pp": 2 }
}
TEXT
"$build/gui/gputwin-gui" --size 1600x1000 --scenario scenario.json >"$work/log" 2>&1 &
gui=$!
find_window() {
  window=$(xdotool search --all --onlyvisible --pid "$gui" --name "$1" 2>/dev/null | head -1)
  [ -n "$window" ]
}
wait_for "the window" find_window gputwin
xdotool windowmove "$window" 0 0 windowfocus --sync "$window"
picture start

# A run of the scenario as shipped; the title is that of the trace once it is open.
shown() { title | grep -q ' — gputwin'; }
key ctrl+r
wait_for "the first run" shown
picture first_run
expect_change start first_run 15

# Tensor parallel 2 -> 4, typed into its field; the run before becomes A of the comparison.
key ctrl+l ctrl+a
xdotool type 4
picture edited
key ctrl+r
finished_twice() { [ -n "$(find "$work" -name run2.gtr)" ]; }
wait_for "the second run" finished_twice
picture second_run
expect_change first_run second_run 2

key Escape
xdotool mousemove 900 220 click 1
picture clicked
for _ in 1 2 3 4; do key ctrl+plus; done
picture zoomed
expect_change clicked zoomed 3
key period
picture selected
expect_change zoomed selected 0.2
key ctrl+2
picture compared
expect_change selected compared 1

# The file dialog takes the name by keys.
key ctrl+e
main=$window
wait_for "the file dialog" find_window "Export the view"
xdotool windowfocus --sync "$window"
key ctrl+a
xdotool type --delay 40 "$work/view.png"
picture dialog
# The first Return may only close the list of names that the dialog offers.
exported() {
  [ -s "$work/view.png" ] || { key Return && false; }
}
wait_for "the exported picture" exported
window=$main
[ "$(identify -format '%wx%h' "$work/view.png")" = 1600x1000 ] || fail "exported in another size"
[ "$(identify -format '%k' "$work/view.png")" -gt 100 ] || fail "the exported picture is empty"
cp "$work/view.png" "$pictures/exported.png"
echo "ok: exported the view"

xdotool windowfocus --sync "$window"
key ctrl+q
gone() { ! kill -0 "$gui" 2>/dev/null; }
end=$((SECONDS + 20))
until gone; do
  [ "$SECONDS" -lt "$end" ] || fail "the window does not close"
  sleep 0.2
done
wait "$gui" || fail "the window ended with code $?"
gui=
echo "ok: closed with code 0"
