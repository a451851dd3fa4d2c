// gputwin compare, replay and twin, as a person meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const std::string kGputwin = std::string("'") + GPUTWIN_PROGRAM + "' ";
const std::string kRun = "gpt_22b__a100_1x8__tp8_pp1_dp1_full";

ProgramOutput gputwin(const std::string& arguments) {
  return run_command(kGputwin + arguments + " 2>&1");
}

// A run against itself: every part, every operation is the same.
TEST(Compare, ARunWithItselfHasNoDifference) {
  const ScratchFolder folder("compare_same");
  const std::string trace = (folder.path() / "run.gtr").string();
  ASSERT_EQ(gputwin("run " + kRun + " --trace '" + trace + "'").exit_code, 0);
  const ProgramOutput out = gputwin("compare '" + trace + "' '" + trace + "' --json");
  ASSERT_EQ(out.exit_code, 0) << out.text;
  const json found = json::parse(out.text);
  EXPECT_EQ(found["iteration_a_s"], found["iteration_b_s"]);
  EXPECT_EQ(found["errors"]["all"]["mean_absolute"], 0.0);
  EXPECT_GT(found["errors"]["all"]["pairs"].get<int>(), 1000);
  EXPECT_TRUE(found["only_a"].empty());
  EXPECT_THAT(found["explanation"][0].get<std::string>(), HasSubstr("nothing differs"));
}

// Matrix products of half the speed: the difference is compute, their mean error -50 %, and the
// parts sum to the iterations.
TEST(Compare, NamesWhatBecameSlower) {
  const ScratchFolder folder("compare_slow");
  const std::string a = (folder.path() / "a.gtr").string(),
                    b = (folder.path() / "b.json.gz").string();
  ASSERT_EQ(gputwin("run " + kRun + " --trace '" + a + "'").exit_code, 0);
  ASSERT_EQ(
      gputwin("run " + kRun + " --set what_if.times.gemm_time=2 --trace '" + b + "'").exit_code, 0);
  const std::string out_folder = (folder.path() / "out").string();
  const ProgramOutput out = gputwin("compare '" + a + "' '" + b + "' --out '" + out_folder + "'");
  ASSERT_EQ(out.exit_code, 0) << out.text;
  EXPECT_THAT(out.text, HasSubstr("1. compute takes"));
  const json found = read_json(fs::path(out_folder) / "comparison.json");
  double sum_a = 0, sum_b = 0;
  for (const json& part : found["parts"]) {
    sum_a += part["a_s"].get<double>();
    sum_b += part["b_s"].get<double>();
  }
  EXPECT_NEAR(sum_a, found["iteration_a_s"].get<double>(), 1e-9);
  EXPECT_NEAR(sum_b, found["iteration_b_s"].get<double>(), 1e-9);
  for (const json& kind : found["errors"]["kinds"]) {
    const bool products = kind["kind"] == "matrix multiply";
    EXPECT_NEAR(kind["mean_error"].get<double>(), products ? -0.5 : 0.0, 0.01) << kind["kind"];
  }
  EXPECT_TRUE(fs::exists(fs::path(out_folder) / "comparison.html"));
  const ProgramOutput joint =
      gputwin("compare '" + out_folder + "/both.gtr' '" + out_folder + "/both.json.gz' --json");
  EXPECT_EQ(joint.exit_code, 0) << joint.text;
}

// A trace that is cut off is refused with its name, and nothing is written.
TEST(Compare, RefusesATruncatedTrace) {
  const ScratchFolder folder("compare_cut");
  const fs::path trace = folder.path() / "run.gtr";
  ASSERT_EQ(gputwin("run " + kRun + " --trace '" + trace.string() + "'").exit_code, 0);
  fs::resize_file(trace, fs::file_size(trace) / 2);
  const std::string out_folder = (folder.path() / "out").string();
  const ProgramOutput out =
      gputwin("compare " + kRun + " '" + trace.string() + "' --out '" + out_folder + "'");
  EXPECT_EQ(out.exit_code, 2) << out.text;
  EXPECT_THAT(out.text, HasSubstr(trace.string()));
  EXPECT_FALSE(fs::exists(out_folder));
}

struct TwinFolder {
  ScratchFolder scratch{"twin"};
  std::string path = (scratch.path() / "twin").string();
  std::string quoted = "'" + path + "'";
};

std::string log_of(int iterations, double ms) {
  std::string text;
  for (int i = 1; i <= iterations; ++i) {
    text += " iteration " + std::to_string(i) +
            "/ 100 | elapsed time per iteration (ms): " + std::to_string(ms) + " | lm loss: 2 |\n";
  }
  return text;
}

// A prediction is kept before the run; a log whose iterations take twice as long lies outside the
// interval for three windows of ten and is an alert (exit 1); a like one is none.
TEST(Twin, KeepsPredictionsAndSeesDrift) {
  const TwinFolder twin;
  ASSERT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 0);
  EXPECT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 2);
  const ProgramOutput predicted = gputwin("twin predict " + twin.quoted + " --json");
  ASSERT_EQ(predicted.exit_code, 0) << predicted.text;
  const double seconds = json::parse(predicted.text)["iteration_s"];
  EXPECT_TRUE(fs::exists(fs::path(twin.path) / "predictions/p1/timeline.gtr"));
  const fs::path log = twin.scratch.path() / "run.log";
  std::ofstream(log) << log_of(31, 1e3 * seconds);
  const ProgramOutput calm = gputwin("twin observe " + twin.quoted + " '" + log.string() + "'");
  EXPECT_EQ(calm.exit_code, 0) << calm.text;
  std::ofstream(log) << log_of(31, 2e3 * seconds);
  const ProgramOutput slow = gputwin("twin observe " + twin.quoted + " '" + log.string() + "'");
  EXPECT_EQ(slow.exit_code, 1) << slow.text;
  EXPECT_THAT(slow.text, HasSubstr("drift: the last 3 windows lie above"));
  const ProgramOutput status = gputwin("twin status " + twin.quoted);
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_THAT(status.text, HasSubstr("o2"));
  EXPECT_THAT(status.text, HasSubstr("stands: drift"));
  EXPECT_EQ(gputwin("twin status " + twin.quoted + " --json").exit_code, 1);
  std::ofstream(log) << log_of(31, 1e3 * seconds);
  ASSERT_EQ(gputwin("twin observe " + twin.quoted + " '" + log.string() + "'").exit_code, 0);
  EXPECT_EQ(gputwin("twin status " + twin.quoted).exit_code, 0);
}

// Killed after the scenario, after the empty history, and within the first line: each time there is
// no twin yet, and init makes one. Then it is one, and init says so.
TEST(Twin, BeginsAgainAfterAKilledInit) {
  const TwinFolder twin;
  const fs::path history = fs::path(twin.path) / "history.jsonl";
  for (const char* left : {"", R"({"event":"init","gputwin_tw)"}) {
    fs::remove_all(twin.path);
    fs::create_directories(twin.path);
    std::ofstream(fs::path(twin.path) / "scenario.json") << "{}";
    EXPECT_THAT(gputwin("twin status " + twin.quoted).text, HasSubstr("holds no twin"));
    std::ofstream(history) << left;
    const ProgramOutput none = gputwin("twin status " + twin.quoted);
    EXPECT_EQ(none.exit_code, 2) << none.text;
    EXPECT_THAT(none.text, HasSubstr("gputwin twin init"));
    const ProgramOutput made = gputwin("twin init " + twin.quoted + " " + kRun + " --json");
    ASSERT_EQ(made.exit_code, 0) << made.text;
    EXPECT_EQ(json::parse(made.text)["job"], kRun);
    EXPECT_EQ(gputwin("twin status " + twin.quoted).exit_code, 0);
    EXPECT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 2);
  }
}

// The same for real, whenever the signal comes.
TEST(Twin, SurvivesBeingKilledAtAnyMoment) {
  for (int ms = 1; ms < 60; ms += 6) {
    const TwinFolder twin;
    const std::string after = ms < 10 ? "0.00" : "0.0";
    run_command("timeout -s KILL " + after + std::to_string(ms) + " " + kGputwin + "twin init " +
                twin.quoted + " " + kRun + " 2>&1");
    const bool made = gputwin("twin status " + twin.quoted).exit_code == 0;
    EXPECT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, made ? 2 : 0) << ms;
    EXPECT_EQ(gputwin("twin status " + twin.quoted).exit_code, 0) << ms;
  }
}

// A trace that is cut off leaves no observation: no folder, no line.
TEST(Twin, KeepsNothingOfACutTrace) {
  const TwinFolder twin;
  ASSERT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 0);
  ASSERT_EQ(gputwin("twin predict " + twin.quoted).exit_code, 0);
  for (const char* name : {"seen.gtr", "seen.json.gz"}) {
    const fs::path seen = twin.scratch.path() / name;
    ASSERT_EQ(gputwin("run " + kRun + " --trace '" + seen.string() + "'").exit_code, 0);
    fs::resize_file(seen, fs::file_size(seen) / 2);
    const ProgramOutput out = gputwin("twin observe " + twin.quoted + " '" + seen.string() + "'");
    EXPECT_EQ(out.exit_code, 2) << out.text;
    EXPECT_THAT(out.text, HasSubstr(name));
    EXPECT_FALSE(fs::exists(fs::path(twin.path) / "observations" / "o1"));
  }
  EXPECT_EQ(json::parse(gputwin("twin status " + twin.quoted + " --json").text).size(), 2u);
}

// A log of torchtitan tells tokens per second and device: 8 ranks share the tokens of the job.
TEST(Twin, TakesTokensPerSecondForTime) {
  const TwinFolder twin;
  ASSERT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 0);
  const json predicted = json::parse(gputwin("twin predict " + twin.quoted + " --json").text);
  const json job = read_json(fs::path(twin.path) / "scenario.json")["job"];
  const double tokens = job["global_batch"].get<double>() * job["sequence"].get<double>() / 8;
  const auto tps = std::llround(tokens / predicted["iteration_s"].get<double>());
  const fs::path log = twin.scratch.path() / "titan.log";
  std::ofstream(log) << "[titan] step:  1  loss: 12.2  memory: 47GiB(60%)  tps: 9  mfu: 1.00%\n"
                     << "[titan] step: 10  loss: 9.9  memory: 47GiB(60%)  tps: " << tps
                     << "  tflops: 9.1  mfu: 40.00%\n";
  const ProgramOutput out =
      gputwin("twin observe " + twin.quoted + " '" + log.string() + "' --json");
  ASSERT_EQ(out.exit_code, 0) << out.text;
  EXPECT_NEAR(json::parse(out.text)["error"].get<double>(), 0,
              0.5 / static_cast<double>(tps) + 1e-9);
  EXPECT_EQ(json::parse(out.text)["iterations"], 10);
}

// A measured trace in which products take twice as long: learned, the next prediction takes as long
// as what was seen.
TEST(Twin, LearnsFromATrace) {
  const TwinFolder twin;
  ASSERT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 0);
  ASSERT_EQ(gputwin("twin predict " + twin.quoted).exit_code, 0);
  const std::string seen = (twin.scratch.path() / "seen.gtr").string();
  ASSERT_EQ(
      gputwin("run " + kRun + " --set what_if.times.gemm_time=2 --trace '" + seen + "'").exit_code,
      0);
  const ProgramOutput out =
      gputwin("twin observe " + twin.quoted + " '" + seen + "' --learn --json");
  const json line = json::parse(out.text);
  EXPECT_NEAR(line["factors_learned"]["gemm_time"].get<double>(), 2.0, 0.03);
  const json again = json::parse(gputwin("twin predict " + twin.quoted + " --json").text);
  EXPECT_NEAR(again["iteration_s"].get<double>(), line["iteration_s"].get<double>(),
              0.01 * line["iteration_s"].get<double>());
}

// A process killed while it wrote leaves a torn last line: it is cut off and the history before it
// stays; a damaged line within is an error with its number.
TEST(Twin, LosesNothingBeforeATornLine) {
  const TwinFolder twin;
  ASSERT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 0);
  ASSERT_EQ(gputwin("twin predict " + twin.quoted).exit_code, 0);
  const fs::path history = fs::path(twin.path) / "history.jsonl";
  std::ofstream(history, std::ios::app) << R"({"event":"observation","id":"o1","pred)";
  const ProgramOutput status = gputwin("twin status " + twin.quoted + " --json");
  ASSERT_EQ(status.exit_code, 0) << status.text;
  EXPECT_EQ(json::parse(status.text).size(), 2u);
  EXPECT_EQ(gputwin("twin predict " + twin.quoted).exit_code, 0);
  EXPECT_EQ(json::parse(gputwin("twin status " + twin.quoted + " --json").text).size(), 3u);
  std::ofstream(history, std::ios::app) << "damaged\n{\"event\":\"prediction\"}\n";
  const ProgramOutput broken = gputwin("twin status " + twin.quoted);
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.text, HasSubstr("line 4"));
}

TEST(Twin, RefusesWhatIsNone) {
  const TwinFolder twin;
  const ProgramOutput none = gputwin("twin predict " + twin.quoted);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.text, HasSubstr("gputwin twin init"));
  ASSERT_EQ(gputwin("twin init " + twin.quoted + " " + kRun).exit_code, 0);
  const fs::path log = twin.scratch.path() / "empty.log";
  std::ofstream(log) << "nothing\n";
  EXPECT_THAT(gputwin("twin observe " + twin.quoted + " '" + log.string() + "'").text,
              HasSubstr("holds no prediction"));
  ASSERT_EQ(gputwin("twin predict " + twin.quoted).exit_code, 0);
  const ProgramOutput empty = gputwin("twin observe " + twin.quoted + " '" + log.string() + "'");
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.text, HasSubstr("elapsed time per iteration"));
}

}  // namespace
}  // namespace gputwin
