// A learned correction of a physical model: boosted oblivious trees on features of the shape.
//
//   predicted = physical x exp(clamp(sum over trees of leaf, -bound, bound))
//
// A tree of depth d asks d questions `feature > threshold`; their answers number its leaf. Trees
// are grown on log(measured / physical) of benchmark tables by gputwin calibrate
// (hwmodels/calibrate/boost.h) and stored in hwmodels/residuals/*.json. Features are shapes and
// ratios that the physical model yields (waves, padding, compute over memory), so that devices of
// one architecture share a correction. Beyond the range they were grown on the nearest leaf holds.
// Source  oblivious trees: Prokhorenkova et al., CatBoost, NeurIPS 2018; boosting: Friedman 2001.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gputwin {

/// Ends of the 80 % interval as factors on predicted times below `below_s`.
struct IntervalBand {
  double below_s = 0, low = 1, high = 1;
};

struct Residual {
  static constexpr std::size_t kDepth = 6, kLeaves = 64;
  struct Tree {
    std::array<std::uint8_t, kDepth> feature{};
    std::array<float, kDepth> threshold{};
    std::array<float, kLeaves> leaf{};
  };

  std::string name;                   // of its file
  std::string source;                 // what it was grown on, and how well it does
  std::vector<std::string> features;  // names, in the order the model gives them
  std::vector<Tree> trees;
  double bound = 0;                    // of the logarithm
  std::vector<IntervalBand> interval;  // by rising below_s; the last one is for all longer times

  /// The factor on a physical time. `x` has one value for each feature. About 2 ns a tree.
  double factor(std::span<const float> x) const;
  /// The band of a predicted time.
  const IntervalBand& band(double time_s) const;
};

/// Reads hwmodels/residuals/NAME.json. Throws InputError with file and JSON pointer, also if its
/// features are not `features`.
std::shared_ptr<const Residual> load_residual(const std::filesystem::path& path,
                                              std::span<const char* const> features);

/// The text of its file.
std::string residual_text(const Residual& residual);

}  // namespace gputwin
