// One summary per shipped run, reviewed as a diff. Rewritten by: GPUTWIN_UPDATE_GOLDEN=1 ctest
// --preset dev -R Golden
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Six significant digits: what a reviewer can compare, and more than any model is worth.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.5e", value);
  return std::strtod(digits.data(), nullptr);
}

Json summary(const nlohmann::json& result) {
  Json out;
  for (const char* key : {"iteration_time_s", "makespan_s", "tokens_per_s", "model_tflops_per_gpu",
                          "hardware_tflops_per_gpu", "mfu", "hfu"}) {
    out[key] = rounded(result.at(key).get<double>());
  }
  for (const auto& bound : result.at("interval_s")) out["interval_s"].push_back(rounded(bound));
  for (const auto& [part, seconds] : result.at("breakdown_s").items()) {
    out["breakdown_s"][part] = rounded(seconds);
  }
  for (const char* key : {"peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes"}) {
    out["memory"][key] = rounded(result.at("memory").at(key).get<double>());
  }
  for (const char* key : {"tasks", "flows", "simulated_ranks"}) {
    out["engine"][key] = result.at("engine").at(key);
  }
  return out;
}

class Golden : public ::testing::TestWithParam<fs::path> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST_P(Golden, MatchesItsSummary) {
  const ScratchFolder folder("golden-" + GetParam().stem().string());
  const ProgramOutput output = run_scenario(GPUTWIN_PROGRAM, GetParam(), folder.path());
  ASSERT_EQ(output.exit_code, 0) << output.text;
  const auto result = read_json(folder.path() / "result.json");
  const std::string now = summary(result).dump(2) + "\n";
  double sum = 0;
  for (const auto& [part, seconds] : result.at("breakdown_s").items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, result.at("iteration_time_s").get<double>(), 1e-9);

  const fs::path golden =
      fs::path(GPUTWIN_SOURCE_DIR) / "tests" / "golden" / (GetParam().stem().string() + ".json");
  if (std::getenv("GPUTWIN_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden) << now;
    GTEST_SKIP() << "wrote " << golden;
  }
  ASSERT_TRUE(fs::exists(golden)) << "no summary yet; write it with GPUTWIN_UPDATE_GOLDEN=1";
  EXPECT_EQ(now, read_file(golden))
      << "if this is meant, rewrite it with GPUTWIN_UPDATE_GOLDEN=1 and review the diff";
}

INSTANTIATE_TEST_SUITE_P(Runs, Golden, ::testing::ValuesIn(shipped_runs()), name_of_run);

// A summary whose scenario is gone would be compared with nothing for ever.
TEST(GoldenFiles, HaveTheirScenario) {
  for (const auto& entry :
       fs::directory_iterator(fs::path(GPUTWIN_SOURCE_DIR) / "tests" / "golden")) {
    if (entry.path().extension() != ".json") continue;
    const fs::path scenario =
        fs::path(GPUTWIN_SOURCE_DIR) / "scenarios" / "runs" / entry.path().filename();
    EXPECT_TRUE(fs::exists(scenario)) << entry.path();
  }
}

}  // namespace
}  // namespace gputwin
