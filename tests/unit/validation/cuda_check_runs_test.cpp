// The runs that validation/device_check.sh makes on a GPU, smaller and on the double: nothing of
// them is refused, and their losses are those of the processor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "sim/app/run.h"
#include "sim/app/scenario.h"
#include "tests/support/cuda_double/cuda_double.h"
#include "validation/executors/cuda/cuda_executor.h"
#include "validation/executors/host/host_executor.h"

namespace gputwin::executors {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> check_runs() {
  std::vector<fs::path> list;
  const fs::path folder = fs::path(GPUTWIN_SOURCE_DIR) / "validation/executors/cuda/check_runs";
  for (const auto& entry : fs::directory_iterator(folder)) list.push_back(entry.path());
  std::sort(list.begin(), list.end());
  return list;
}

class CudaCheckRuns : public testing::TestWithParam<fs::path> {};

TEST_P(CudaCheckRuns, HasTheLossOfTheProcessor) {
  const Scenario scenario = load_scenario(
      GetParam(),
      {"model.hidden=32", "model.ffn=64", "model.vocab=48", "model.layers=2", "job.sequence=16"},
      {fs::path(GPUTWIN_SOURCE_DIR) / "scenarios"});
  cuda_double::start({.devices = 1});
  CudaOptions on_gpu;
  on_gpu.bodies = 2;
  CudaExecutor cuda(on_gpu);
  RunRequest request;
  request.machine = &cuda;
  request.obstacle = cuda_obstacle;
  const RunOutcome outcome = run(scenario, request);
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome)) FAIL() << infeasible->reason;
  ASSERT_TRUE(std::holds_alternative<RunResult>(outcome));
  EXPECT_THAT(cuda_double::wrongs(), testing::IsEmpty());
  EXPECT_EQ(cuda_double::alive(), 0);

  HostOptions here;
  here.bodies = 2;
  HostExecutor host(here);
  request.machine = &host;
  request.obstacle = nullptr;
  ASSERT_TRUE(std::holds_alternative<RunResult>(run(scenario, request)));
  const bool single = scenario.job.precision.compute == DType::F32;
  EXPECT_NEAR(cuda.values().loss, host.values().loss, single ? 1e-4 : 0.02);
  EXPECT_LT(cuda.values().loss, 4.2);  // ln 48 = 3.87, with the noise of weights
}

std::string name_of(const testing::TestParamInfo<fs::path>& run) {
  return run.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(All, CudaCheckRuns, testing::ValuesIn(check_runs()), name_of);

}  // namespace
}  // namespace gputwin::executors
