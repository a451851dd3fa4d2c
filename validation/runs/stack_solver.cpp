#include "validation/runs/stack_solver.h"

#include <ceres/ceres.h>

#include <algorithm>
#include <boost/math/tools/minima.hpp>
#include <cmath>
#include <numeric>
#include <set>

namespace gputwin {
namespace {

constexpr int kSize = static_cast<int>(kFactors);
constexpr double kRunError = 0.05;     // in log: of a run whose stack's factors are right
constexpr double kFactorSpread = 0.3;  // in log: of factors from stack to stack
constexpr double kStartSpread = 2.0;   // in log: of CollectiveStart
constexpr double kMostStart = 100.0;
constexpr double kStartGain = 0.05;  // share of the mean cross-fitted error, or it is left at 1
constexpr double kHostShare = 0.02;  // in the mean over runs
constexpr auto kHost = static_cast<std::size_t>(Factor::Host);
constexpr auto kStart = static_cast<std::size_t>(Factor::CollectiveStart);

// Residual slope . x - offset.
class Line final : public ceres::SizedCostFunction<1, kSize> {
 public:
  Line(const LogFactors& slope, double offset) : slope_(slope), offset_(offset) {}

  bool Evaluate(double const* const* x, double* residual, double** jacobian) const override {
    residual[0] = std::inner_product(slope_.begin(), slope_.end(), x[0], -offset_);
    if (jacobian != nullptr && jacobian[0] != nullptr) {
      std::copy(slope_.begin(), slope_.end(), jacobian[0]);
    }
    return true;
  }

 private:
  LogFactors slope_;
  double offset_;
};

bool host_counts(std::span<const LinearRun> runs) {
  double sum = 0;
  for (const LinearRun& run : runs) sum += run.share[kHost];
  return sum >= kHostShare * static_cast<double>(runs.size());
}

struct Solution {
  LogFactors x{};
  double cost = 0;
};

// The other factors where that of CollectiveStart is `start`, in log.
Solution solve(std::span<const LinearRun> runs, double start) {
  LogFactors x{};
  ceres::Problem problem;
  const bool host = host_counts(runs);
  for (const LinearRun& run : runs) {
    LogFactors slope = run.share;
    if (!host) slope[kHost] = 0;
    // log(predicted(x) / measured) = slope . x - offset.
    double offset = std::log(run.measured_s / run.starting_at(start));
    for (std::size_t k = 0; k < kFactors; ++k) offset += slope[k] * run.at[k];
    problem.AddResidualBlock(new Line(slope, offset), new ceres::SoftLOneLoss(kRunError), x.data());
  }
  for (std::size_t k = 0; k < kFactors; ++k) {
    LogFactors pull{};
    pull[k] = kRunError / kFactorSpread;
    problem.AddResidualBlock(new Line(pull, 0), nullptr, x.data());
  }
  ceres::Solver::Options options;
  options.linear_solver_type = ceres::DENSE_QR;
  options.dense_linear_algebra_library_type = ceres::EIGEN;
  options.num_threads = 1;
  options.logging_type = ceres::SILENT;
  options.function_tolerance = options.parameter_tolerance = 1e-12;
  options.max_num_iterations = 200;
  ceres::Solver::Summary summary;
  ceres::Solve(options, &problem, &summary);
  x[kStart] = start;
  const double pull = kRunError / kStartSpread * start;
  return {x, summary.final_cost + pull * pull / 2};
}

// With the best start: of a grid, then by Brent's method between its neighbours.
LogFactors solve_with_start(std::span<const LinearRun> runs) {
  constexpr int kGrid = 16, kBits = 20;
  const double step = std::log(kMostStart) / kGrid;
  const auto cost = [runs](double start) { return solve(runs, start).cost; };
  int best = 0;
  double least = cost(0);
  for (int i = 1; i <= kGrid; ++i) {
    const double here = cost(i * step);
    if (here < least) least = here, best = i;
  }
  const double low = std::max(0, best - 1) * step, high = std::min(kGrid, best + 1) * step;
  return solve(runs, boost::math::tools::brent_find_minima(cost, low, high, kBits).first).x;
}

template <class Solve>
std::vector<double> times_of_other_folds(std::span<const LinearRun> runs, Solve solve_fold) {
  const std::vector<std::size_t> fold = folds(runs);
  std::vector<double> times(runs.size());
  for (const std::size_t left_out : std::set<std::size_t>(fold.begin(), fold.end())) {
    std::vector<LinearRun> others;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (fold[i] != left_out) others.push_back(runs[i]);
    }
    const LogFactors x = solve_fold(others);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (fold[i] == left_out) times[i] = runs[i].predicted(x);
    }
  }
  return times;
}

template <class Solve>
double cross_fitted_error(std::span<const LinearRun> runs, Solve solve_fold) {
  const std::vector<double> times = times_of_other_folds(runs, solve_fold);
  double sum = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) sum += std::abs(times[i] / runs[i].measured_s - 1);
  return sum / static_cast<double>(runs.size());
}

// Runs taken around a start keep one: far from it their shares say nothing of times without.
bool start_counts(std::span<const LinearRun> runs) {
  const bool around =
      std::any_of(runs.begin(), runs.end(), [](const LinearRun& r) { return r.at[kStart] > 0; });
  if (around) return true;
  const bool any =
      std::any_of(runs.begin(), runs.end(), [](const auto& r) { return r.start_s > 0; });
  if (!any || runs.size() < 2 * kLeastRuns) return false;
  return cross_fitted_error(runs, solve_with_start) <=
         (1 - kStartGain) * cross_fitted_error(runs, fit_without_start);
}

}  // namespace

double LinearRun::starting_at(double start) const {
  const double time = predicted_s + start_s * (std::exp(start) - std::exp(at[kStart]));
  return std::max(time, 0.01 * predicted_s);
}

double LinearRun::predicted(const LogFactors& x) const {
  double change = 0;
  for (std::size_t k = 0; k < kFactors; ++k) change += share[k] * (x[k] - at[k]);
  return starting_at(x[kStart]) * std::exp(change);
}

LogFactors fit_without_start(std::span<const LinearRun> runs) { return solve(runs, 0).x; }

LogFactors fit_factors(std::span<const LinearRun> runs) {
  return start_counts(runs) ? solve_with_start(runs) : fit_without_start(runs);
}

std::vector<std::size_t> folds(std::span<const LinearRun> runs) {
  std::set<std::string> groups;
  for (const LinearRun& run : runs) groups.insert(run.group);
  const auto others = [&](const std::string& group) {
    return static_cast<std::size_t>(std::count_if(
        runs.begin(), runs.end(), [&](const LinearRun& r) { return r.group != group; }));
  };
  const bool by_group = std::all_of(groups.begin(), groups.end(),
                                    [&](const auto& g) { return others(g) >= kLeastRuns; });
  std::vector<std::size_t> fold(runs.size());
  if (by_group) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto group = groups.find(runs[i].group);
      fold[i] = static_cast<std::size_t>(std::distance(groups.begin(), group));
    }
    return fold;
  }
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return runs[a].id < runs[b].id; });
  for (std::size_t place = 0; place < order.size(); ++place) fold[order[place]] = place % 2;
  return fold;
}

std::vector<double> cross_fitted(std::span<const LinearRun> runs) {
  return times_of_other_folds(runs, fit_factors);
}

}  // namespace gputwin
