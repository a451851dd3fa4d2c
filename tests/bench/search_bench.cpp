// How many distinct layouts the closed form scores in a second, once its tables are made.
//
// The job is GPT-3 175B on 1,024 A100, the space that of `gputwin search`. Every pass looks at
// every layout once, those that cannot be or do not fit included, and must find as many as the
// first.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "hwmodels/hardware_model.h"
#include "sim/app/scenario.h"
#include "strategies/search/layout_space.h"

namespace gputwin {
namespace {

const std::filesystem::path kRoot = GPUTWIN_SOURCE_DIR;

struct World {
  Scenario scenario =
      load_scenario("gpt3_175b__a100_128x8__tp8_pp16_dp8", {}, {kRoot / "scenarios"});
  const Transformer& model = std::get<Transformer>(scenario.workload);
  Topology topology{scenario.cluster};
  HardwareModel costs{topology, scenario.job, kRoot / "hwmodels"};
  LayoutEstimator estimator{model, scenario.cluster, scenario.job, costs, topology};

  SpaceCount look(const std::function<void(const Layout&, const Estimate&)>& found) {
    const SpaceWatcher watcher{.found = found, .keep_on = [](double) { return true; }};
    return enumerate({}, scenario.layout, model, scenario.cluster, scenario.job, estimator,
                     watcher);
  }
};

// Every layout of the space, also those that are refused at once.
void layouts_of_the_space(benchmark::State& state) {
  World world;
  const SpaceCount first = world.look([](const Layout&, const Estimate&) {});
  std::int64_t looked_at = 0;
  for (auto _ : state) {
    const SpaceCount again = world.look([](const Layout&, const Estimate&) {});
    if (again.feasible != first.feasible) state.SkipWithError("another count of layouts");
    looked_at += again.looked_at;
  }
  state.counters["layouts/s"] =
      benchmark::Counter(static_cast<double>(looked_at), benchmark::Counter::kIsRate);
}
BENCHMARK(layouts_of_the_space)->Unit(benchmark::kMillisecond);

// The layouts that fit alone, of which each is scored in full.
void layouts_that_fit(benchmark::State& state) {
  World world;
  std::vector<Layout> layouts;
  world.look([&](const Layout& l, const Estimate&) { layouts.push_back(l); });
  std::int64_t scored = 0;
  for (auto _ : state) {
    for (const Layout& l : layouts) {
      const Outcome<Estimate> outcome = world.estimator.estimate(l);
      if (!std::get<Estimate>(outcome).fits()) state.SkipWithError("a layout that no longer fits");
    }
    scored += static_cast<std::int64_t>(layouts.size());
  }
  state.counters["layouts/s"] =
      benchmark::Counter(static_cast<double>(scored), benchmark::Counter::kIsRate);
  state.counters["distinct"] = static_cast<double>(layouts.size());
}
BENCHMARK(layouts_that_fit)->Unit(benchmark::kMillisecond);

// The tables of the whole space.
void tables(benchmark::State& state) {
  for (auto _ : state) {
    World world;
    benchmark::DoNotOptimize(world.look([](const Layout&, const Estimate&) {}));
  }
}
BENCHMARK(tables)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gputwin

BENCHMARK_MAIN();
