// The stream core against the reference executor, and its own ways of running against each other,
// on random plans. Every run is a child process, as SimGrid allows one engine per process.
#include <gtest/gtest.h>

#include <sstream>

#include "sim/core/plan_text.h"
#include "sim/engine/reference_executor.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/support/in_child.h"
#include "tests/support/random_plan.h"

namespace gputwin::test {
namespace {

constexpr std::uint64_t kPlans = 300;

/// One line per plan: iteration, bodies and the end of every rank; and that all breakdowns add up.
std::string figures(const ExecutionOutcome& outcome) {
  std::ostringstream line;
  const auto* run = std::get_if<Execution>(&outcome);
  if (run == nullptr) return "no end\n";
  line << run->iteration << ' ' << run->engine.bodies;
  for (const Ps end : run->rank_end) line << ' ' << end;
  for (const Breakdown& parts : run->breakdown) {
    Ps sum = 0;
    for (const Ps part : parts) sum += part < 0 ? -1'000'000'000'000 : part;
    if (sum != run->iteration) line << " breakdown sums to " << sum;
  }
  return line.str() + '\n';
}

template <class SomeExecutor>
std::vector<std::string> run_all(Contention contention, const RunOptions& options) {
  const ChildResult child = in_child([&] {
    SomeExecutor executor;
    std::string lines;
    for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
      PlanCase c = draw(contention, seed);
      if (getenv("DEPTH")) c.costs.host_cost.queue_depth = 1024;
      lines += figures(executor.run(c.plan, c.costs, Topology(c.cluster), options, nullptr));
    }
    return lines;
  });
  EXPECT_TRUE(child.ok) << child.text;
  std::vector<std::string> lines;
  std::istringstream text(child.text);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// Largest difference of any two figures, in picoseconds; huge if a line is not figures alone.
double difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  double worst = 0, x = 0, y = 0;
  while (left >> x && right >> y) worst = std::max(worst, std::abs(x - y));
  return left.eof() && right.rdstate() != std::ios::goodbit ? worst : (left.eof() ? worst : 1e30);
}

void expect_equal(const std::vector<std::string>& a, const std::vector<std::string>& b,
                  Contention contention, double tolerance_ps) {
  ASSERT_EQ(a.size(), kPlans);
  ASSERT_EQ(b.size(), kPlans);
  int different = 0;
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    if (difference(a[seed], b[seed]) <= tolerance_ps) continue;
    if (++different > 3) continue;
    ADD_FAILURE() << "seed " << seed << "\n"
                  << a[seed] << '\n'
                  << b[seed] << '\n'
                  << to_text(draw(contention, seed).plan);
  }
  EXPECT_EQ(different, 0);
}

constexpr RunOptions kCalendar{.fold = Fold::Off, .advance = Advance::Calendar};
constexpr RunOptions kRunAhead{.fold = Fold::Off};
constexpr RunOptions kAllSimgrid{.fold = Fold::Off, .transfers = Transfers::AllSimGrid};

TEST(Executors, CalendarEqualsReferenceWhereNothingContends) {
  expect_equal(run_all<SimgridExecutor>(Contention::None, kCalendar),
               run_all<ReferenceExecutor>(Contention::None, kCalendar), Contention::None, 2);
}

TEST(Executors, RunAheadEqualsCalendarWhereNothingContends) {
  expect_equal(run_all<SimgridExecutor>(Contention::None, kRunAhead),
               run_all<SimgridExecutor>(Contention::None, kCalendar), Contention::None, 0);
}

TEST(Executors, RunAheadEqualsCalendarUnderContention) {
  expect_equal(run_all<SimgridExecutor>(Contention::Any, kRunAhead),
               run_all<SimgridExecutor>(Contention::Any, kCalendar), Contention::Any, 100);
}

TEST(Executors, LoneFlowsEqualSimgridFlows) {
  expect_equal(run_all<SimgridExecutor>(Contention::Any, kRunAhead),
               run_all<SimgridExecutor>(Contention::Any, kAllSimgrid), Contention::Any, 1000);
}

}  // namespace
}  // namespace gputwin::test
