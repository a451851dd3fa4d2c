// Factors of a stack from runs whose answer is known.
#include "validation/runs/stack_solver.h"

#include <gmock/gmock.h>

#include <cmath>

namespace gputwin {
namespace {

// A run of one second without factors whose shares of GEMM, memory-bound and in-node collective
// time are given; the host has 0.01.
LinearRun run_of(const std::string& id, const std::string& group, double gemm, double memory,
                 double collective) {
  LinearRun run{.id = id, .group = group, .measured_s = 1, .predicted_s = 1, .at = {}, .share = {}};
  run.share[static_cast<std::size_t>(Factor::Gemm)] = gemm;
  run.share[static_cast<std::size_t>(Factor::MemoryBound)] = memory;
  run.share[static_cast<std::size_t>(Factor::CollectiveInNode)] = collective;
  run.share[static_cast<std::size_t>(Factor::Host)] = 0.01;
  return run;
}

// Four mixes of work, sixteen runs of each, as if taken at GEMM x 1.2 and memory-bound x 0.8.
std::vector<LinearRun> planted() {
  LogFactors truth{};
  truth[static_cast<std::size_t>(Factor::Gemm)] = std::log(1.2);
  truth[static_cast<std::size_t>(Factor::MemoryBound)] = std::log(0.8);
  std::vector<LinearRun> runs;
  for (int n = 0; n < 64; ++n) {
    const double gemm = 0.3 + 0.15 * (n % 4), collective = n % 2 == 0 ? 0.05 : 0.2;
    runs.push_back(run_of("r" + std::to_string(100 + n), n < 32 ? "a" : "b", gemm,
                          0.9 - gemm - collective / 2, collective));
    runs.back().measured_s = runs.back().predicted(truth);
  }
  return runs;
}

double factor(const LogFactors& x, Factor f) { return std::exp(x[static_cast<std::size_t>(f)]); }

// 0.8 s of 1 s in GEMMs at factor 1.5, and 0.2 s of nothing that scales: the first order gives
// 1 s x exp(0.8 ln 1.5) = 1.5^0.8.
TEST(StackSolver, LinearRunsFollowTheirShares) {
  LinearRun run = run_of("r", "g", 0.8, 0, 0);
  LogFactors x{};
  x[static_cast<std::size_t>(Factor::Gemm)] = std::log(1.5);
  EXPECT_NEAR(run.predicted(x), std::pow(1.5, 0.8), 1e-12);
  run.at = x;  // the time was taken with that factor already
  EXPECT_NEAR(run.predicted(x), 1.0, 1e-12);
}

// The ridge weighs (0.05 / 0.3)^2 = 0.028 against 64 runs with squared shares of about 0.2 each:
// planted factors come back to better than a percent.
TEST(StackSolver, RecoversPlantedFactors) {
  const LogFactors x = fit_factors(planted());
  EXPECT_NEAR(factor(x, Factor::Gemm), 1.2, 0.01);
  EXPECT_NEAR(factor(x, Factor::MemoryBound), 0.8, 0.01);
  EXPECT_NEAR(factor(x, Factor::CollectiveInNode), 1.0, 0.01);
}

// Shares and times may be taken at other factors than 1.
TEST(StackSolver, RecoversThemFromAnotherPoint) {
  std::vector<LinearRun> runs = planted();
  LogFactors at{};
  at[static_cast<std::size_t>(Factor::Gemm)] = std::log(1.1);
  for (LinearRun& run : runs) {
    run.predicted_s = run.predicted(at);
    run.at = at;
  }
  EXPECT_NEAR(factor(fit_factors(runs), Factor::Gemm), 1.2, 0.01);
}

// A start 30 times as long adds 29 x start_s to each run, from 3 to 29 % of its second, in no
// relation to its shares: it is found, and the factors with it.
TEST(StackSolver, RecoversALateStart) {
  std::vector<LinearRun> runs = planted();
  LogFactors truth{};
  truth[static_cast<std::size_t>(Factor::Gemm)] = std::log(1.2);
  truth[static_cast<std::size_t>(Factor::CollectiveStart)] = std::log(30.0);
  for (std::size_t n = 0; n < runs.size(); ++n) {
    runs[n].start_s = 0.001 * static_cast<double>(1 + (7 * n) % 10);
    runs[n].measured_s = runs[n].predicted(truth);
  }
  const LogFactors x = fit_factors(runs);
  EXPECT_NEAR(factor(x, Factor::CollectiveStart), 30.0, 1.5);
  EXPECT_NEAR(factor(x, Factor::Gemm), 1.2, 0.02);
}

// A start of 0.4 to 3.5 % of the times, where errors without it are below a percent, is found: what
// counts is how much of the error it explains, not how large that is.
TEST(StackSolver, RecoversALateStartOfSmallErrors) {
  std::vector<LinearRun> runs = planted();
  LogFactors truth{};
  truth[static_cast<std::size_t>(Factor::CollectiveStart)] = std::log(8.0);
  for (std::size_t n = 0; n < runs.size(); ++n) {
    runs[n].start_s = 0.0005 * static_cast<double>(1 + (7 * n) % 10);
    runs[n].measured_s = runs[n].predicted(truth);
  }
  EXPECT_NEAR(factor(fit_factors(runs), Factor::CollectiveStart), 8.0, 1.5);
}

// Times are 5 % off either way, so a start of 0.4 to 3.5 % explains too little of the error to be
// kept. Runs taken around one keep it: their shares say nothing of times without.
TEST(StackSolver, KeepsTheStartThatRunsWereTakenAround) {
  constexpr auto kStart = static_cast<std::size_t>(Factor::CollectiveStart);
  const auto start_of = [&](double at) {
    std::vector<LinearRun> runs = planted();
    LogFactors truth{};
    truth[kStart] = std::log(8.0);
    for (std::size_t n = 0; n < runs.size(); ++n) {
      runs[n].start_s = 0.0005 * static_cast<double>(1 + (7 * n) % 10);
      runs[n].measured_s = runs[n].predicted(truth) * (n / 3 % 2 == 0 ? 1.05 : 0.95);
      runs[n].predicted_s += runs[n].start_s * (at - 1);
      runs[n].at[kStart] = std::log(at);
    }
    return factor(fit_factors(runs), Factor::CollectiveStart);
  };
  EXPECT_EQ(start_of(1), 1.0);
  EXPECT_GT(start_of(6), 2.0);
}

// Where the other factors explain the times already, a start is not fitted, though it has a share.
TEST(StackSolver, LeavesTheStartWhereItGainsNothing) {
  std::vector<LinearRun> runs = planted();
  for (std::size_t n = 0; n < runs.size(); ++n) {
    runs[n].start_s = 0.001 * static_cast<double>(1 + (7 * n) % 10);
  }
  EXPECT_EQ(fit_factors(runs)[static_cast<std::size_t>(Factor::CollectiveStart)], 0.0);
}

// One run of share 0.5 measured 10 % slow: minimise rho(0.5 x - ln 1.1) + (x / 6)^2. Without the
// loss x = 0.5 ln 1.1 / (0.25 + 1 / 36) = 0.172, less where rho grows slower than a square.
TEST(StackSolver, OneRunIsBelievedInPart) {
  LinearRun run = run_of("r", "g", 0.5, 0, 0);
  run.measured_s = 1.1;
  const LogFactors x = fit_factors(std::vector{run});
  const double gemm = x[static_cast<std::size_t>(Factor::Gemm)];
  EXPECT_GT(gemm, 0.10);
  EXPECT_LT(gemm, 0.172);
}

// No run has attention time, and launches have 1 % of it, less than the 2 % that counts.
TEST(StackSolver, WhatCannotBeToldStaysOne) {
  std::vector<LinearRun> runs = planted();
  for (LinearRun& run : runs) run.measured_s *= 1.3;
  const LogFactors x = fit_factors(runs);
  EXPECT_DOUBLE_EQ(factor(x, Factor::Attention), 1.0);
  EXPECT_DOUBLE_EQ(factor(x, Factor::Host), 1.0);
}

// Two of 64 runs measured ten times too slow move the factors by less than 2 %; squares would move
// them by 2 / 64 x ln 10 = 7 % of the time.
TEST(StackSolver, OddRunsPullLittle) {
  std::vector<LinearRun> runs = planted();
  runs[3].measured_s *= 10;
  runs[40].measured_s *= 10;
  const LogFactors x = fit_factors(runs);
  EXPECT_NEAR(runs[7].predicted(x) / runs[7].measured_s, 1.0, 0.02);
}

TEST(StackSolver, FoldsAreGroupsWhereThereAreSeveral) {
  const std::vector<LinearRun> runs = planted();
  const std::vector<std::size_t> fold = folds(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t j = 0; j < runs.size(); ++j) {
      EXPECT_EQ(fold[i] == fold[j], runs[i].group == runs[j].group);
    }
  }
}

// One group: every second run in order of ids, whatever the order of the list.
TEST(StackSolver, FoldsOfOneGroupAlternate) {
  std::vector<LinearRun> runs;
  for (const char* id : {"d", "a", "c", "b"}) runs.push_back(run_of(id, "one", 0.5, 0, 0));
  EXPECT_THAT(folds(runs), testing::ElementsAre(1, 0, 0, 1));
}

// Twelve runs, two of them of another group: without the large group two are left, too few.
TEST(StackSolver, FoldsAlternateWhereAGroupIsNearlyAll) {
  std::vector<LinearRun> runs;
  for (int n = 0; n < 12; ++n) {
    runs.push_back(run_of(std::to_string(10 + n), n < 10 ? "large" : "small", 0.5, 0, 0));
  }
  EXPECT_THAT(folds(runs), testing::ElementsAre(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1));
}

// Group a says GEMM x 1.2, group b x 1.0: each is predicted with what the other says, so a comes
// out fast by 1.2^share and b slow by it.
TEST(StackSolver, CrossFittedTimesRestOnTheOtherFold) {
  std::vector<LinearRun> runs;
  for (int n = 0; n < 40; ++n) {
    runs.push_back(run_of(std::to_string(10 + n), n < 20 ? "a" : "b", 0.8, 0, 0));
    if (n < 20) runs.back().measured_s = std::pow(1.2, 0.8);
  }
  const std::vector<double> times = cross_fitted(runs);
  EXPECT_NEAR(times[0], 1.0, 1e-6);
  EXPECT_NEAR(times[39], std::pow(1.2, 0.8), 0.005);
}

}  // namespace
}  // namespace gputwin
