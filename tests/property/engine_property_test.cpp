// One plan, several executors that share no code: the reference (longest path), SimGrid with every
// task an activity, and the stream core. They must agree wherever they claim the same thing.
//
// SimGrid allows one engine per process and takes 60 ms to start, so each executor runs a batch of
// plans in a forked child, which sends back one line of figures per plan.
#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>

#include "sim/core/plan_text.h"
#include "sim/core/verify.h"
#include "sim/engine/fold.h"
#include "sim/engine/jitter.h"
#include "sim/engine/reference_executor.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/support/grid_plan.h"
#include "tests/support/in_child.h"
#include "tests/support/random_plan.h"
#include "tests/support/whole_simgrid_executor.h"

namespace gputwin::test {
namespace {

constexpr std::uint64_t kPlans = 1000, kBatch = 250;

struct Figures {
  bool ran = false;
  Ps iteration = 0;
  std::int32_t bodies = 0;
  std::vector<Ps> rank_end;
};

std::string to_line(const ExecutionOutcome& outcome) {
  std::ostringstream line;
  if (const auto* run = std::get_if<Execution>(&outcome)) {
    line << run->iteration << ' ' << run->engine.bodies;
    for (const Ps end : run->rank_end) line << ' ' << end;
  } else {
    line << "deadlock";
  }
  return line.str() + '\n';
}

std::vector<Figures> parse_lines(const std::string& text) {
  std::vector<Figures> result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Figures figures;
    std::istringstream words(line);
    figures.ran = static_cast<bool>(words >> figures.iteration >> figures.bodies);
    for (Ps end; words >> end;) figures.rank_end.push_back(end);
    result.push_back(figures);
  }
  return result;
}

/// Runs every case with one executor, in a child.
template <class SomeExecutor>
std::vector<Figures> run_all(const std::vector<PlanCase>& cases, const RunOptions& options = {}) {
  const ChildResult child = in_child([&] {
    SomeExecutor executor;
    std::string lines;
    for (const PlanCase& c : cases) {
      lines += to_line(executor.run(c.plan, c.costs, Topology(c.cluster), options, nullptr));
    }
    return lines;
  });
  EXPECT_TRUE(child.ok) << child.text;
  return parse_lines(child.text);
}

/// 1e-9 of the time, and 1 ps (the rounding of one duration, and SimGrid's resolution) per task of
/// the rank.
double tolerance(const PlanCase& c, std::size_t rank, const Figures& figures) {
  const auto tasks = c.plan.program_of(RankId(static_cast<std::uint32_t>(rank))).body.size();
  return 1e-9 * static_cast<double>(figures.rank_end[rank]) +
         static_cast<double>(tasks) * std::max(1, figures.bodies);
}

std::string describe(const PlanCase& c) {
  std::ostringstream text;
  text << to_text(c.plan) << "nodes " << c.cluster.nodes() << ", gpus " << c.cluster.gpus()
       << ", adapters per node " << c.cluster.groups[0].type.nics.per_node << ", latency "
       << c.costs.latency.value << ", cap " << c.costs.rate_cap.value << ", slowdown "
       << c.costs.compute_slowdown << ", launch " << c.costs.host_cost.launch.value << ", depth "
       << c.costs.host_cost.queue_depth << ", cuda graph " << c.plan.cuda_graph << ", dram "
       << c.cluster.groups[0].type.host.dram.value;
  return text.str();
}

/// Why two runs of one case differ, or nothing.
std::string difference(const PlanCase& c, const Figures& a, const Figures& b) {
  if (!a.ran || !b.ran) return "one did not end";
  if (std::abs(a.iteration - b.iteration) > tolerance(c, 0, a) + 8) {
    return "iteration " + std::to_string(a.iteration) + " or " + std::to_string(b.iteration);
  }
  if (a.bodies != b.bodies) return {};  // rounding put off convergence; later bodies are no news
  for (std::size_t r = 0; r < a.rank_end.size(); ++r) {
    if (std::abs(static_cast<double>(a.rank_end[r] - b.rank_end[r])) <= tolerance(c, r, a))
      continue;
    return "rank " + std::to_string(r) + " ends at " + std::to_string(a.rank_end[r]) + " or " +
           std::to_string(b.rank_end[r]) + " ps";
  }
  return {};
}

/// Expects equal figures for all cases; describes the smallest plan that differs.
void expect_equal(const std::vector<PlanCase>& cases, const std::vector<Figures>& a,
                  const std::vector<Figures>& b) {
  ASSERT_EQ(a.size(), cases.size());
  ASSERT_EQ(b.size(), cases.size());
  std::size_t different = 0, smallest = cases.size();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (difference(cases[i], a[i], b[i]).empty()) continue;
    ++different;
    const auto tasks = [&](std::size_t k) { return cases[k].plan.tasks_per_body(); };
    if (smallest == cases.size() || tasks(i) < tasks(smallest)) smallest = i;
  }
  if (different == 0) return;
  ADD_FAILURE() << different << " of " << cases.size()
                << " differ; smallest: " << difference(cases[smallest], a[smallest], b[smallest])
                << "\n"
                << describe(cases[smallest]);
}

std::vector<PlanCase> batch(Contention contention, std::uint64_t first) {
  std::vector<PlanCase> cases;
  for (std::uint64_t seed = first; seed < first + kBatch; ++seed) {
    cases.push_back(draw(contention, seed));
  }
  return cases;
}

template <class A, class B>
void expect_executors_agree(Contention contention, RunOptions a = {}, RunOptions b = {}) {
  for (std::uint64_t first = 0; first < kPlans; first += kBatch) {
    const std::vector<PlanCase> cases = batch(contention, first);
    expect_equal(cases, run_all<A>(cases, a), run_all<B>(cases, b));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomPlans, AreSound) {
  for (const Contention contention : {Contention::None, Contention::Any}) {
    for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
      const PlanCase c = draw(contention, seed);
      const std::vector<Violation> broken = verify(c.plan, Depth::Structure);
      ASSERT_TRUE(broken.empty()) << broken[0].rule << ' ' << broken[0].what << '\n' << describe(c);
    }
  }
}

TEST(RandomPlans, ReferenceEqualsWholeSimgridWhereNothingContends) {
  expect_executors_agree<ReferenceExecutor, WholeSimgridExecutor>(Contention::None);
}

constexpr RunOptions kRunAhead{.fold = Fold::Off, .advance = Advance::RunAhead};
constexpr RunOptions kCalendar{.fold = Fold::Off, .advance = Advance::Calendar};
constexpr RunOptions kAllSimGrid{
    .fold = Fold::Off, .advance = Advance::Calendar, .transfers = Transfers::AllSimGrid};

TEST(RandomPlans, RunAheadEqualsReferenceWhereNothingContends) {
  expect_executors_agree<ReferenceExecutor, SimgridExecutor>(Contention::None, {}, kRunAhead);
}

TEST(RandomPlans, AllTransfersInSimgridEqualReferenceWhereNothingContends) {
  expect_executors_agree<ReferenceExecutor, SimgridExecutor>(Contention::None, {}, kAllSimGrid);
}

TEST(RandomPlans, RunAheadEqualsWholeSimgridUnderContention) {
  expect_executors_agree<SimgridExecutor, WholeSimgridExecutor>(Contention::Any, kRunAhead);
}

TEST(RandomPlans, CalendarEqualsRunAheadUnderContention) {
  expect_executors_agree<SimgridExecutor, SimgridExecutor>(Contention::Any, kCalendar, kRunAhead);
}

TEST(RandomPlans, AllTransfersInSimgridEqualSharedOnesUnderContention) {
  expect_executors_agree<SimgridExecutor, SimgridExecutor>(Contention::Any, kAllSimGrid, kRunAhead);
}

/// Symmetric grids on every kind of cluster.
std::vector<PlanCase> grids() {
  std::vector<PlanCase> cases;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::uint64_t r = splitmix64(seed);
    const std::uint32_t tp = 1u << (r % 3), dp = 1u << (r / 4 % 3), pp = 1 + r / 16 % 4;
    PlanCase c;
    c.plan = grid_plan({.tp = tp, .dp = dp, .pp = pp, .seed = seed});
    SmallCluster shape{.gpus = 4};
    shape.nodes = static_cast<std::int32_t>(std::max(2u, (tp * dp * pp + 3) / 4));
    shape.nics = r / 64 % 2 == 0 ? 4 : 1;
    shape.oversubscription = r / 128 % 2 == 0 ? 1.0 : 4.0;
    c.cluster = small_cluster(shape);
    c.costs.latency = Seconds(2e-6);
    c.costs.compute_slowdown = r / 256 % 2 == 0 ? 1.0 : 1.25;
    if (r / 512 % 2 == 0) c.costs.host_cost = {Seconds(2e-6), Seconds(5e-6), Seconds(4e-6), 1024};
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(Grids, FoldedEqualsUnfolded) {
  const std::vector<PlanCase> cases = grids();
  const RunOptions folded{.fold = Fold::Auto};
  expect_equal(cases, run_all<SimgridExecutor>(cases, folded),
               run_all<SimgridExecutor>(cases, kRunAhead));
}

TEST(Grids, FoldedEqualsUnfoldedOnTheCalendar) {
  const std::vector<PlanCase> cases = grids();
  const RunOptions folded{.fold = Fold::Auto, .advance = Advance::Calendar};
  expect_equal(cases, run_all<SimgridExecutor>(cases, folded),
               run_all<SimgridExecutor>(cases, kCalendar));
}

// The proof behind folding, tested without folding: ranks of one class end together on every rank's
// own run, random plans and contention included.
TEST(Grids, RanksOfAClassEndTogetherUnfolded) {
  std::vector<PlanCase> cases = grids();
  for (std::uint64_t seed = 0; seed < 100; ++seed) cases.push_back(draw(Contention::Any, seed));
  const std::vector<Figures> figures = run_all<SimgridExecutor>(cases, kRunAhead);
  ASSERT_EQ(figures.size(), cases.size());
  std::size_t folded = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Folding f = fold(cases[i].plan, Topology(cases[i].cluster), cases[i].costs);
    folded += f.folded;
    for (std::size_t r = 0; r < f.representative.size(); ++r) {
      EXPECT_NEAR(static_cast<double>(figures[i].rank_end[r]),
                  static_cast<double>(figures[i].rank_end[f.representative[r].value]),
                  tolerance(cases[i], r, figures[i]))
          << describe(cases[i]);
    }
  }
  EXPECT_GE(folded, 45u);  // the grids of one rank per stage have nothing to fold
}

std::vector<Ps> iterations(const std::vector<PlanCase>& cases) {
  std::vector<Ps> result;
  ReferenceExecutor reference;
  for (const PlanCase& c : cases) {
    const ExecutionOutcome run =
        reference.run(c.plan, c.costs, Topology(c.cluster), RunOptions{}, nullptr);
    const auto* execution = std::get_if<Execution>(&run);
    result.push_back(execution == nullptr ? -1 : execution->makespan);
  }
  return result;
}

// The reference keeps every stream's order, so nothing can get slower from faster links (no Graham
// anomaly) unless kernels are slowed by what now runs beside them.
TEST(RandomPlans, MoreBandwidthIsNeverSlowerOnTheReference) {
  std::vector<PlanCase> cases = batch(Contention::Any, 0);
  std::erase_if(cases, [](const PlanCase& c) {
    return c.costs.compute_slowdown != 1.0 || c.plan.crosses_iterations();
  });
  const std::vector<Ps> before = iterations(cases);
  for (PlanCase& c : cases) {
    NodeType& type = c.cluster.groups[0].type;
    type.intra.per_gpu = type.intra.per_gpu * 2;
    type.nics.each = type.nics.each * 2;
    type.pcie.per_gpu = type.pcie.per_gpu * 2;
  }
  const std::vector<Ps> after = iterations(cases);
  std::size_t faster = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_LE(after[i], before[i]) << describe(cases[i]);
    faster += after[i] < before[i];
  }
  EXPECT_GT(faster, cases.size() / 4);
}

// No stream can end before the sum of its kernels, nor a host before the sum of its launches.
TEST(RandomPlans, TakeAtLeastTheWorkOfAnyStream) {
  const std::vector<PlanCase> cases = batch(Contention::Any, 5000);
  const std::vector<Figures> figures = run_all<SimgridExecutor>(cases, kRunAhead);
  ASSERT_EQ(figures.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const PlanCase& c = cases[i];
    if (c.plan.crosses_iterations() || c.plan.jitter.sigma > 0) continue;
    for (std::size_t r = 0; r < c.plan.ranks.size(); ++r) {
      const Program& program = c.plan.program_of(RankId(static_cast<std::uint32_t>(r)));
      std::vector<double> work(program.streams.size());
      double launches = 0;
      for (const Instruction& instruction : program.body) {
        if (!is_task(instruction.kind)) continue;
        if (!c.plan.cuda_graph) launches += c.costs.host_cost.launch.value;
        if (instruction.kind != Kind::Kernel) continue;
        const Flops flops = c.plan.call(instruction).op.flops;
        work[instruction.stream] += (flops / c.costs.speed).value * c.plan.ranks[r].slowdown;
      }
      const double least = std::max(launches, *std::max_element(work.begin(), work.end()));
      EXPECT_GE(static_cast<double>(figures[i].rank_end[r]) + tolerance(c, r, figures[i]),
                least * kPsPerSecond);
    }
  }
}

}  // namespace
}  // namespace gputwin::test
