#!/usr/bin/env bash
# Do the tests of the window see a fault? Plants one of faults.txt at a time in a copy of the
# sources, builds gui_test, and expects it to fail. For people, not for CI: every fault costs a
# build of part of the window. tests/gui/mutants.sh [SCRATCH_FOLDER [WORDS_OF_A_FAULT]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch=${1:-$(mktemp -d)}
wanted=${2:-}
copy=$scratch/gputwin

mkdir -p "$copy"
git ls-files -co --exclude-standard -z | xargs -0 cp --parents -t "$copy"
cd "$copy"
[ -f build/dev/build.ninja ] || cmake --preset dev >"$scratch/cmake.log"
build() { ninja -C build/dev gui_test >"$scratch/build.log" 2>&1; }
tests_pass() {
  build/dev/tests/unit/gui/gui_test --gtest_brief=1 --gtest_filter="$1" >"$scratch/test.log" 2>&1
}

echo "building the sources as they are …"
build || { tail -20 "$scratch/build.log"; exit 2; }
tests_pass 'TimelineTest.*:MainWindowTest.*:ScenarioPanelTest.*:SearchViewTest.*' ||
  { tail -20 "$scratch/test.log"; echo "tests fail without any fault"; exit 2; }

planted=0 survived=0
while IFS='|' read -r what file expression filter; do
  what=$(echo $what) file=$(echo $file) filter=$(echo $filter)
  [[ -n $what && $what != '#'* && $what == *"$wanted"* ]] || continue
  cp "$file" "$scratch/whole"
  sed -i "$(echo "$expression" | sed 's/^ *//; s/ *$//')" "$file"
  if cmp -s "$file" "$scratch/whole"; then
    echo "STALE     $what: $file no longer holds the line"
    survived=$((survived + 1))
    continue
  fi
  planted=$((planted + 1))
  # Neither the build nor the tests may read the list.
  if ! build </dev/null; then
    echo "no build  $what"
    survived=$((survived + 1))
  elif tests_pass "$filter" </dev/null; then
    echo "SURVIVED  $what"
    survived=$((survived + 1))
  else
    by=$(grep -m1 -o 'FAILED  *\] [A-Za-z]*\.[A-Za-z]*' "$scratch/test.log" || true)
    echo "caught    $what: ${by##* }"
  fi
  cp "$scratch/whole" "$file"
done <tests/gui/faults.txt
echo "$planted faults planted, $survived not caught"
[ "$survived" -eq 0 ]
