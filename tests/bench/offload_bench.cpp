// How long offload takes to plan: GPT-3 175B on one GPU, every bucket swapped through it.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "hwmodels/hardware_model.h"
#include "sim/app/scenario.h"
#include "strategies/strategy.h"

namespace gputwin {
namespace {

const std::filesystem::path kRoot = GPUTWIN_SOURCE_DIR;

// Buckets of 350 to 450 million parameters: 400 to 500 of them. Counts the step `offload` alone;
// lowering and checks are reported beside it. The greedy strategies try a dozen plans and more.
void offload_175b(benchmark::State& state, const char* strategy) {
  const std::string micro_batches = std::to_string(state.range(1));
  const Scenario s = load_scenario(
      "gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy",
      {"model=gpt3_175b", "passes.0.offload.strategy=" + std::string(strategy),
       "passes.0.offload.bucket_elements=" + std::to_string(state.range(0)), "layout.micro_batch=1",
       "job.global_batch=" + micro_batches, "cluster.groups.0.type.host.memory_GiB=4000"},
      {kRoot / "scenarios"});
  const Topology topology(s.cluster);
  const HardwareModel costs(topology, s.job, kRoot / "hwmodels");
  double planning = 0, all = 0, loads = 0;
  for (auto _ : state) {
    std::vector<StepTime> times;
    Outcome<Plan> outcome = make_plan(s.workload, s.cluster, s.layout, s.job, &times, &costs);
    if (!std::holds_alternative<Plan>(outcome)) {
      state.SkipWithError("no plan");
      break;
    }
    const Plan& plan = std::get<Plan>(outcome);
    loads = 0;
    for (const Instruction& i : plan.programs.front().body) {
      loads += i.kind == Kind::Copy && plan.names[i.name].op == "weight_in" ? 1 : 0;
    }
    for (const StepTime& t : times) {
      all += t.time.value;
      if (t.name == "offload") planning += t.time.value;
    }
  }
  if (loads < 300) state.SkipWithError("fewer loads than buckets");
  const auto n = static_cast<double>(state.iterations());
  state.counters["offload_s"] = planning / n;
  state.counters["whole_plan_s"] = all / n;
  state.counters["loads"] = loads;
}
BENCHMARK_CAPTURE(offload_175b, zero_infinity, "zero-infinity-cpu")
    ->Args({350'000'000, 1})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(offload_175b, greedy, "greedy")
    ->Args({350'000'000, 1})
    ->Args({350'000'000, 4})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(offload_175b, greedy_unclipped, "greedy-unclipped")
    ->Args({350'000'000, 1})
    ->Args({350'000'000, 4})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gputwin

BENCHMARK_MAIN();
