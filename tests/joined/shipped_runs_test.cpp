// The shipped scenarios, from file to figures: ways to simulate that must agree, and figures of
// real runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cctype>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "hwmodels/hardware_model.h"
#include "sim/app/run.h"
#include "strategies/strategy.h"
#include "tests/support/in_child.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

const std::vector<fs::path> kData{fs::path(GPUTWIN_SOURCE_DIR) / "scenarios"};

// Fold::Off simulates every rank. Jobs of more tasks than this are cut to the fewest micro-batches
// that fill the pipeline: one per stage (interleaving needs a multiple of the stages).
constexpr std::int64_t kMostTasks = 10'000'000;
constexpr std::int32_t kMostRanks = 1024;
constexpr std::int32_t kMostRanksByCalendar = 64;
constexpr double kTimeout = 240;

/// Names of the shipped runs of at most `most` ranks, sorted.
std::vector<std::string> names_up_to(std::int32_t most) {
  std::vector<std::string> names;
  for (const Listing& run : list_runs(kData)) {
    if (load_scenario(run.name, {}, kData).layout.ranks() <= most) names.push_back(run.name);
  }
  return names;
}

std::int64_t tasks_per_body(const Scenario& s) {
  return std::get<Plan>(make_plan(s.workload, s.cluster, s.layout, s.job)).tasks_per_body();
}

/// The shipped run, or the same with one micro-batch per stage where it is long.
Scenario shortened(const std::string& name) {
  Scenario s = load_scenario(name, {}, kData);
  const Layout& l = s.layout;
  const std::int64_t shortest = l.micro_batch * l.dp * l.pp;
  if (s.job.global_batch == shortest || tasks_per_body(s) <= kMostTasks) return s;
  return load_scenario(name, {"job.global_batch=" + std::to_string(shortest)}, kData);
}

/// What a run says, as numbers in order: iteration, makespan, and of every rank its end and its
/// breakdown.
std::vector<std::int64_t> figures(const Execution& e) {
  std::vector<std::int64_t> all{e.iteration, e.makespan};
  for (std::size_t r = 0; r < e.rank_end.size(); ++r) {
    all.push_back(e.rank_end[r]);
    all.insert(all.end(), e.breakdown.at(r).begin(), e.breakdown.at(r).end());
  }
  return all;
}

/// The figures of a run in a process of its own.
std::vector<std::int64_t> simulated(const Scenario& scenario, Fold fold, Advance advance) {
  const test::ChildResult child = test::in_child(
      [&] {
        RunRequest request;
        request.options.fold = fold;
        request.options.advance = advance;
        const RunOutcome outcome = run(scenario, request);
        std::ostringstream text;
        for (const std::int64_t f : figures(std::get<RunResult>(outcome).execution)) {
          text << f << ' ';
        }
        return text.str();
      },
      kTimeout);
  EXPECT_TRUE(child.ok) << child.text;
  std::vector<std::int64_t> all;
  std::istringstream text(child.text);
  for (std::int64_t f = 0; text >> f;) all.push_back(f);
  return all;
}

/// Equal to 1e-9 of the iteration time.
void expect_equal(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b,
                  const Scenario& s) {
  const auto ranks = static_cast<std::size_t>(s.layout.ranks());
  ASSERT_EQ(a.size(), 2 + ranks * (1 + kParts));
  ASSERT_EQ(b.size(), a.size());
  ASSERT_GT(a[0], 0);
  const double tolerance = 1e-9 * static_cast<double>(a[0]);
  std::size_t differing = 0, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::abs(static_cast<double>(a[i] - b[i])) <= tolerance) continue;
    if (differing++ == 0 || std::abs(a[i] - b[i]) > std::abs(a[worst] - b[worst])) worst = i;
  }
  EXPECT_EQ(differing, 0u) << "worst: figure " << worst
                           << " (0 iteration, 1 makespan, then by rank "
                           << "its end and " << kParts << " parts): " << a[worst] << " and "
                           << b[worst] << " ps of " << a[0];
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

class Folded : public ::testing::TestWithParam<std::string> {};

TEST_P(Folded, SaysOfEveryRankWhatTheWholeSimulationSays) {
  const Scenario s = shortened(GetParam());
  expect_equal(simulated(s, Fold::Auto, Advance::RunAhead),
               simulated(s, Fold::Off, Advance::RunAhead), s);
}

INSTANTIATE_TEST_SUITE_P(ShippedRuns, Folded, ::testing::ValuesIn(names_up_to(kMostRanks)),
                         test_name);

// The other exchanges of the context-parallel run: messages around a ring, and heads for tokens.
TEST(FoldedContextParallel, SaysWhatTheWholeSimulationSays) {
  for (const char* exchange : {"ring", "all-to-all"}) {
    SCOPED_TRACE(exchange);
    const Scenario s =
        load_scenario("llama3_8b__h100_4x8__tp2_pp1_dp4_cp4",
                      {std::string("layout.cp_comm=") + exchange, "job.global_batch=4"}, kData);
    const auto whole = simulated(s, Fold::Off, Advance::RunAhead);
    expect_equal(simulated(s, Fold::Auto, Advance::RunAhead), whole, s);
    expect_equal(simulated(s, Fold::Off, Advance::Calendar), whole, s);
  }
}

class ByCalendar : public ::testing::TestWithParam<std::string> {};

TEST_P(ByCalendar, SaysWhatRunAheadSays) {
  const Scenario s = shortened(GetParam());
  expect_equal(simulated(s, Fold::Off, Advance::RunAhead),
               simulated(s, Fold::Off, Advance::Calendar), s);
}

INSTANTIATE_TEST_SUITE_P(ShippedRuns, ByCalendar,
                         ::testing::ValuesIn(names_up_to(kMostRanksByCalendar)), test_name);

class Fits : public ::testing::TestWithParam<std::string> {};

TEST_P(Fits, IntoTheMemoryOfItsDevices) {
  const Scenario s = load_scenario(GetParam(), {}, kData);
  const Topology topology(s.cluster);
  const HardwareModel costs(topology, s.job, fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels");
  const auto outcome = prepare(s, costs, topology);
  ASSERT_TRUE(std::holds_alternative<PreparedRun>(outcome)) << std::get<Infeasible>(outcome).reason;
  const PreparedRun& prepared = std::get<PreparedRun>(outcome);
  ASSERT_EQ(prepared.memory.size(), prepared.plan.programs.size());
  if (s.what_if.unlimited_memory) {
    // A known gap that closes must fail: then the scenario should no longer ask for it.
    ASSERT_EQ(prepared.warnings.size(), 1u);
    EXPECT_THAT(prepared.warnings[0], ::testing::HasSubstr("does not fit"));
    return;
  }
  for (const RoleMemory& role : prepared.memory) {
    EXPECT_GT(role.figures.allocated.value, 0) << role.role;
    EXPECT_LE(role.figures.allocated, role.figures.reserved) << role.role;
    EXPECT_LT(role.figures.reserved, role.figures.device) << role.role;
    EXPECT_LE(role.figures.device.value, costs.device(DeviceKindId(0)).memory.value) << role.role;
  }
}

// Without a capacity nothing would ever be refused.
TEST(Capacity, IsTheMemoryOfTheDevice) {
  const Scenario s = load_scenario("gpt2_124m__a100_1x8__tp1_pp1_dp8", {}, kData);
  const Topology topology(s.cluster);
  const HardwareModel costs(topology, s.job, fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels");
  const auto outcome = prepare(s, costs, topology);
  EXPECT_EQ(std::get<PreparedRun>(outcome).memory.at(0).capacity.value, std::int64_t{80} << 30);
}

INSTANTIATE_TEST_SUITE_P(ShippedRuns, Fits, ::testing::ValuesIn(names_up_to(1 << 20)), test_name);

constexpr const char* kFlagship = "gpt3_175b__a100_128x8__tp8_pp16_dp8";

double iteration_s(const char* name) {
  const RunOutcome outcome = run(load_scenario(name, {}, kData), {});
  return to_seconds(std::get<RunResult>(outcome).execution.iteration).value;
}

// A real run of this size took 31.5 s per iteration: 28.35 to 34.65 s are within 10 %.
TEST(Flagship, TakesTheTimeOfTheRealRun) { EXPECT_NEAR(iteration_s(kFlagship), 31.5, 3.15); }

// 6.2 to 6.8 s (Grattafiori et al. 2024, 400 TFLOP/s per GPU): 6.5 s, within 15 %.
TEST(Llama405b, TakesTheTimeOfTheRealRun) {
  EXPECT_NEAR(iteration_s("llama3_405b__h100_2048x8__tp8_pp16_dp128"), 6.5, 0.975);
}

TEST(Flagship, HasSixtyFiveMillionTasks) {
  EXPECT_EQ(tasks_per_body(load_scenario(kFlagship, {}, kData)), 65'468'480);
}

// GPT-3 175B on one node: weights and gradients alone are 6 B x 175e9 / 8 = 131 GB per GPU of 80
// GB.
TEST(TooLarge, SaysBySoMuchAndWritesNothing) {
  const Scenario s = load_scenario("gpt_22b__a100_1x8__tp8_pp1_dp1_full",
                                   {"model=gpt3_175b", "layout.micro_batch=1"}, kData);
  const fs::path trace =
      fs::temp_directory_path() / ("gputwin-too-large-" + std::to_string(::getpid()) + ".json");
  RunRequest request;
  request.trace = trace;
  const RunOutcome outcome = run(s, request);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome));
  const Infeasible& no = std::get<Infeasible>(outcome);
  ASSERT_TRUE(no.short_by.has_value());
  EXPECT_GT(no.short_by->value, 50'000'000'000);
  EXPECT_NE(no.reason, "");
  EXPECT_NE(no.fix, "");
  EXPECT_FALSE(fs::exists(trace));
}

}  // namespace
}  // namespace gputwin
