#include "sim/app/result_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/core/error.h"
#include "tests/unit/app/sample_result.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::ElementsAre;

std::vector<std::string> keys(const ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

// The contract: a key that changes or moves breaks the programs that read it.
TEST(ResultJson, HasTheseKeys) {
  const auto json = ordered_json::parse(result_json(sample_result(), "causal"));
  EXPECT_THAT(
      keys(json),
      ElementsAre("schema", "scenario", "iteration_time_s", "interval_s", "makespan_s",
                  "tokens_per_s", "samples_per_s", "model_tflops_per_gpu",
                  "hardware_tflops_per_gpu", "flops_convention", "mfu", "hfu", "breakdown_s",
                  "breakdown_rank", "memory", "extrapolated", "warnings", "engine"));
  EXPECT_THAT(keys(json["breakdown_s"]),
              ElementsAre("compute", "exposed_tp", "exposed_dp", "exposed_pp", "exposed_ep",
                          "exposed_cp", "copy_stall", "bubble", "optimizer", "host"));
  EXPECT_THAT(keys(json["memory"]), ElementsAre("peak_allocated_bytes", "peak_reserved_bytes",
                                                "peak_device_bytes", "by_role"));
  EXPECT_THAT(
      keys(json["memory"]["by_role"][0]),
      ElementsAre("role", "weights_bytes", "gradients_bytes", "optimizer_bytes",
                  "activations_bytes", "temporary_bytes", "communication_bytes", "context_bytes",
                  "peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes",
                  "peak_host_bytes", "fragmentation", "allocator_segments", "allocator_retries",
                  "out_of_memory", "capacity_bytes"));
  EXPECT_THAT(keys(json["engine"]),
              ElementsAre("tasks", "instructions", "flows", "simgrid_flows", "ranks",
                          "simulated_ranks", "bodies", "folded", "unfolded_because",
                          "period_converged", "wall_s", "peak_rss_bytes"));
}

// 64 GiB = 68,719,476,736 bytes. The breakdown of rank 3 sums to the iteration time.
TEST(ResultJson, SaysWhatTheResultSays) {
  const auto json = ordered_json::parse(result_json(sample_result(), "causal"));
  EXPECT_EQ(json["iteration_time_s"], 10.0);
  EXPECT_EQ(json["interval_s"], (ordered_json{9.5, 10.75}));
  EXPECT_EQ(json["memory"]["peak_device_bytes"], 68'719'476'736);
  EXPECT_EQ(json["memory"]["by_role"][1]["activations_bytes"], 4'294'967'296);
  EXPECT_EQ(json["breakdown_rank"], 3);
  double sum = 0;
  for (const auto& [part, seconds] : json["breakdown_s"].items()) sum += seconds.get<double>();
  EXPECT_DOUBLE_EQ(sum, json["iteration_time_s"].get<double>());
}

// A double is written with the fewest digits that read back as the same double.
TEST(ResultJson, WritesNumbersThatReadBackTheSame) {
  RunResult result = sample_result();
  result.tokens_per_s = 0.1 + 0.2;
  result.execution.iteration = 31'523'456'789'123;
  const std::string text = result_json(result, "causal");
  EXPECT_THAT(text, ::testing::HasSubstr("\"tokens_per_s\": 0.30000000000000004"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"iteration_time_s\": 31.523456789123"));
}

TEST(ResultJson, StandsUnderItsNameOnlyWhenWhole) {
  const fs::path folder =
      fs::temp_directory_path() / ("gputwin-result-" + std::to_string(::getpid()));
  const fs::path path = folder / "new" / "result.json";
  write_result_json(path, sample_result(), "causal");
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, result_json(sample_result(), "causal"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "new"), {}),
            1);  // nothing temporary is left
  EXPECT_THROW(write_result_json(path / "below_a_file.json", sample_result(), "causal"),
               InputError);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace gputwin
