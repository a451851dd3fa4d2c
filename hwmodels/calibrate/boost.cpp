#include "hwmodels/calibrate/boost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "sim/core/check.h"

namespace gputwin {

namespace {

constexpr std::size_t kBins = 64;
constexpr std::uint64_t kFolds = 5;
constexpr std::array<double, 4> kBandEnds{10e-6, 100e-6, 1e-3, 1e30};
constexpr std::size_t kLeastInBand = 50;  // fewer rows share the interval of all

// Features as numbers of quantile bins: bin > b asks x > thresholds[b].
struct Binned {
  std::vector<std::vector<float>> thresholds;  // by feature
  std::vector<std::vector<std::uint8_t>> bin;  // by feature, then row

  explicit Binned(const ResidualRows& rows) {
    const std::size_t n = rows.x.size();
    for (std::size_t f = 0; f < rows.names.size(); ++f) {
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) values[i] = rows.x[i][f];
      std::sort(values.begin(), values.end());
      values.erase(std::unique(values.begin(), values.end()), values.end());
      std::vector<float> ends;
      for (std::size_t b = 1; b < kBins && values.size() > 1; ++b) {
        const std::size_t at = std::max<std::size_t>(1, values.size() * b / kBins);
        // Between two values, so that rounding of a feature does not change its side.
        const float middle = 0.5f * values[at - 1] + 0.5f * values[at];
        if (at < values.size() && (ends.empty() || middle > ends.back())) ends.push_back(middle);
      }
      std::vector<std::uint8_t> column(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto place = std::lower_bound(ends.begin(), ends.end(), rows.x[i][f]);
        column[i] = static_cast<std::uint8_t>(place - ends.begin());
      }
      thresholds.push_back(std::move(ends));
      bin.push_back(std::move(column));
    }
  }
};

struct Split {
  std::size_t feature = 0, bin = 0;
  double gain = -1;
};

// The question that, asked of all leaves alike, explains most of the gradients.
Split best_split(const Binned& binned, std::span<const std::size_t> members,
                 const std::vector<std::uint32_t>& leaf, const std::vector<double>& gradient,
                 std::size_t leaves, double prior) {
  Split best;
  std::vector<double> sum(leaves * kBins), count(leaves * kBins);
  for (std::size_t f = 0; f < binned.bin.size(); ++f) {
    const std::size_t ends = binned.thresholds[f].size();
    if (ends == 0) continue;
    std::fill(sum.begin(), sum.end(), 0.0);
    std::fill(count.begin(), count.end(), 0.0);
    for (const std::size_t i : members) {
      const std::size_t at = leaf[i] * kBins + binned.bin[f][i];
      sum[at] += gradient[i];
      count[at] += 1;
    }
    std::array<double, kBins> gain{};
    for (std::size_t l = 0; l < leaves; ++l) {
      const double* s = &sum[l * kBins];
      const double* c = &count[l * kBins];
      const double all = std::accumulate(s, s + kBins, 0.0), n = std::accumulate(c, c + kBins, 0.0);
      double left = 0, left_n = 0;
      for (std::size_t b = 0; b < ends; ++b) {
        left += s[b], left_n += c[b];
        const double right = all - left;
        gain[b] += left * left / (left_n + prior) + right * right / (n - left_n + prior);
      }
    }
    for (std::size_t b = 0; b < ends; ++b) {
      if (gain[b] > best.gain) best = {f, b, gain[b]};
    }
  }
  return best;
}

struct Grower {
  const ResidualRows& rows;
  const Binned& binned;
  const BoostOptions& options;

  // Trees from `members`; `fitted[i]` becomes the correction of row i, member or not.
  std::vector<Residual::Tree> grow(std::span<const std::size_t> members,
                                   std::vector<double>& fitted) const {
    fitted.assign(rows.x.size(), 0.0);
    std::vector<Residual::Tree> trees;
    std::vector<double> gradient(rows.x.size());
    for (std::size_t t = 0; t < options.trees; ++t) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double e = rows.log_ratio[i] - fitted[i];
        gradient[i] = e / std::sqrt(1.0 + e * e / (options.scale * options.scale));
      }
      trees.push_back(one_tree(members, gradient, fitted));
    }
    return trees;
  }

 private:
  Residual::Tree one_tree(std::span<const std::size_t> members, const std::vector<double>& gradient,
                          std::vector<double>& fitted) const {
    Residual::Tree tree;
    std::vector<std::uint32_t> leaf(rows.x.size(), 0);
    for (std::size_t d = 0; d < Residual::kDepth; ++d) {
      const Split split =
          best_split(binned, members, leaf, gradient, std::size_t{1} << d, options.prior);
      tree.feature[d] = static_cast<std::uint8_t>(split.feature);
      tree.threshold[d] = binned.thresholds[split.feature][split.bin];
      for (std::size_t i = 0; i < leaf.size(); ++i) {
        leaf[i] |= static_cast<std::uint32_t>(binned.bin[split.feature][i] > split.bin) << d;
      }
    }
    std::array<double, Residual::kLeaves> sum{}, count{};
    for (const std::size_t i : members) sum[leaf[i]] += gradient[i], count[leaf[i]] += 1;
    for (std::size_t l = 0; l < Residual::kLeaves; ++l) {
      // Stored in units of 1e-4, and used so from the first tree on.
      const double value = options.rate * sum[l] / (count[l] + options.prior);
      tree.leaf[l] = static_cast<float>(std::round(value * 1e4)) * 1e-4f;
    }
    for (std::size_t i = 0; i < leaf.size(); ++i)
      fitted[i] += static_cast<double>(tree.leaf[leaf[i]]);
    return tree;
  }
};

double quantile_of(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

double three_digits(double value) { return std::round(value * 1e3) / 1e3; }

std::vector<IntervalBand> intervals(const std::vector<double>& predicted_s,
                                    const std::vector<double>& log_error) {
  std::vector<IntervalBand> out;
  for (std::size_t b = 0; b < kBandEnds.size(); ++b) {
    std::vector<double> errors;
    for (std::size_t i = 0; i < log_error.size(); ++i) {
      const bool inside =
          predicted_s[i] < kBandEnds[b] && (b == 0 || predicted_s[i] >= kBandEnds[b - 1]);
      if (inside) errors.push_back(log_error[i]);
    }
    if (errors.size() < kLeastInBand) errors = log_error;
    out.push_back({kBandEnds[b], three_digits(std::exp(quantile_of(errors, 0.1))),
                   three_digits(std::exp(quantile_of(errors, 0.9)))});
  }
  return out;
}

}  // namespace

void ResidualRows::add(std::vector<float> features, double measured_s, double physical,
                       std::uint64_t key) {
  x.push_back(std::move(features));
  log_ratio.push_back(std::log(measured_s / physical));
  physical_s.push_back(physical);
  shape.push_back(key);
}

Residual grow_residual(const ResidualRows& rows, const BoostOptions& options) {
  GPUTWIN_CHECK(!rows.x.empty(), "a residual is grown on rows");
  const Binned binned(rows);
  const Grower grower{rows, binned, options};
  const std::size_t n = rows.x.size();
  std::vector<double> fitted, log_error(n), predicted(n);
  for (std::uint64_t fold = 0; fold < kFolds; ++fold) {
    std::vector<std::size_t> members;
    const auto in_fold = [&](std::size_t i) { return rows.shape[i] / 7 % kFolds == fold; };
    for (std::size_t i = 0; i < n; ++i) {
      if (!in_fold(i)) members.push_back(i);
    }
    grower.grow(members, fitted);
    for (std::size_t i = 0; i < n; ++i) {
      if (!in_fold(i)) continue;
      const double correction = std::clamp(fitted[i], -options.bound, options.bound);
      predicted[i] = rows.physical_s[i] * std::exp(correction);
      log_error[i] = rows.log_ratio[i] - correction;
    }
  }
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  Residual out;
  out.features = rows.names;
  out.bound = options.bound;
  out.trees = grower.grow(all, fitted);
  out.interval = intervals(predicted, log_error);
  return out;
}

}  // namespace gputwin
