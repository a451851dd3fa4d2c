#!/usr/bin/env bash
# Sets gputwin up on Debian 12 and runs it. Safe to run again: what is already there is left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly FLAGSHIP="scenarios/runs/gpt3_175b__a100_128x8__tp8_pp16_dp8.json"
readonly OUT="out/flagship"
readonly PACKAGES=(
  # build
  g++ cmake ninja-build pkg-config ccache
  # linked or included by the program
  libsimgrid-dev libboost-dev libboost-graph-dev libboost-iostreams-dev
  nlohmann-json3-dev libvalijson-dev libcli11-dev libfmt-dev libsimdjson-dev
  libceres-dev
  # matrix products of the real layers
  libopenblas-dev
  # gputwin sweep over the processes of an MPI job
  libboost-mpi-dev openmpi-bin
  # the window, gputwin-gui
  qt6-base-dev fonts-dejavu-core xvfb xdotool imagemagick
  # tests and benchmarks
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev valgrind
)

usage() {
  cat <<'TEXT'
usage: ./bootstrap.sh run | test | deps

  run    install the packages, build, simulate GPT-3 175B on 1,024 A100, print the report
  test   install the packages, build, run every test
  deps   install the packages only; then: cmake --preset release && cmake --build --preset release

Needs Debian 12 or something close to it, and root or sudo when a package is missing.
TEXT
}

step() { printf '\n==> %s\n' "$*"; }

fail() {
  printf '\nbootstrap.sh: %s\n' "$*" >&2
  exit 1
}

jobs() { nproc 2>/dev/null || echo 2; }

# Prints the packages of PACKAGES that are not installed, one a line.
missing_packages() {
  local package
  for package in "${PACKAGES[@]}"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      echo "$package"
    fi
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif command -v sudo >/dev/null; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    fail "packages are missing; run this as root, or install sudo. Missing: ${missing[*]}"
  fi
}

deps() {
  step "Packages"
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    fail "this is not a Debian system (no apt-get). Install by hand: ${PACKAGES[*]}"
  mapfile -t missing < <(missing_packages)
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "all ${#PACKAGES[@]} packages are installed"
    return
  fi
  echo "installing: ${missing[*]}"
  as_root apt-get update -q || fail "apt-get update failed; is there a network?"
  as_root apt-get install -y -q --no-install-recommends "${missing[@]}" ||
    fail "apt-get install failed. Missing: ${missing[*]}"
}

# build PRESET [TARGET…]: configures and builds, all targets when none is named.
build() {
  local preset=$1
  shift
  step "Configure ($preset)"
  cmake --preset "$preset" -Wno-dev || fail "cmake --preset $preset failed (see above)"
  step "Build ($preset)${*:+: $*}"
  cmake --build --preset "$preset" -j "$(jobs)" ${*:+--target "$@"} ||
    fail "the $preset build failed (see above)"
}

run() {
  deps
  build release gputwin
  step "Simulate $FLAGSHIP"
  mkdir -p "$OUT"
  ./build/release/sim/cli/gputwin run "$FLAGSHIP" --out "$OUT" --trace "$OUT/trace.json.gz" ||
    fail "gputwin run failed with exit code $?"
  step "Done"
  cat <<TEXT
figures  $OUT/result.json
trace    $OUT/trace.json.gz
         open https://ui.perfetto.dev and drop the file on the page; it stays in your browser
again    ./build/release/sim/cli/gputwin run $FLAGSHIP --set layout.micro_batch=2
TEXT
}

# Tests run in the dev preset (assertions on, quick to compile). The program is also built as people
# run it, in the release preset: the test that both give the same bytes needs that one.
run_tests() {
  deps
  build release gputwin
  build dev
  step "Test (dev)"
  export GPUTWIN_RELEASE_BINARY="$PWD/build/release/sim/cli/gputwin"
  ctest --preset dev -j "$(jobs)" || fail "tests failed (see above)"
}

case "${1:-help}" in
  run) run ;;
  test) run_tests ;;
  deps) deps ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
