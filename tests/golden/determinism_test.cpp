// Same scenario, same bytes: twice in one build, and in the build that people run.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

struct Artifacts {
  std::string result, trace;
  bool operator==(const Artifacts&) const = default;
};

/// result.json without the two figures that tell of the machine it ran on, and the trace.
Artifacts bytes_of(const std::string& program, const fs::path& scenario, const char* name,
                   const std::string& more) {
  const ScratchFolder folder(name);
  const fs::path trace = folder.path() / "trace.json.gz";
  const ProgramOutput output =
      run_scenario(program, scenario, folder.path(), more + " --trace '" + trace.string() + "'");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  if (output.exit_code != 0) return {};
  auto result = nlohmann::ordered_json::parse(read_file(folder.path() / "result.json"));
  result["engine"].erase("wall_s");
  result["engine"].erase("peak_rss_bytes");
  return {result.dump(), read_file(trace)};
}

/// The smallest shipped runs would do, but the flagship is what people look at first.
fs::path flagship() {
  return fs::path(GPUTWIN_SOURCE_DIR) / "scenarios" / "runs" /
         "gpt3_175b__a100_128x8__tp8_pp16_dp8.json";
}

TEST(Determinism, RepeatsEveryByte) {
  const Artifacts first = bytes_of(GPUTWIN_PROGRAM, flagship(), "first", "");
  const Artifacts second = bytes_of(GPUTWIN_PROGRAM, flagship(), "second", "");
  ASSERT_FALSE(first.result.empty());
  EXPECT_EQ(first.result, second.result);
  EXPECT_TRUE(first.trace == second.trace) << "the traces differ";
}

class Builds : public ::testing::TestWithParam<fs::path> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Builds);

// bootstrap.sh builds the release program and names it here; alone, a build cannot know of another
// one.
TEST_P(Builds, GiveTheSameBytes) {
  const char* other = std::getenv("GPUTWIN_RELEASE_BINARY");
  if (other == nullptr) GTEST_SKIP() << "GPUTWIN_RELEASE_BINARY names no other build";
  const Artifacts ours = bytes_of(GPUTWIN_PROGRAM, GetParam(), "ours", "");
  const Artifacts theirs = bytes_of(other, GetParam(), "theirs", "");
  ASSERT_FALSE(ours.result.empty());
  EXPECT_EQ(ours.result, theirs.result);
  EXPECT_TRUE(ours.trace == theirs.trace) << "the traces differ";
}

INSTANTIATE_TEST_SUITE_P(Runs, Builds, ::testing::ValuesIn(shipped_runs()), name_of_run);

}  // namespace
}  // namespace gputwin
