#include "hwmodels/kernels/residual.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/core/check.h"
#include "sim/core/error.h"

namespace gputwin {

namespace {

using Json = nlohmann::ordered_json;

std::string joined(std::span<const char* const> names) {
  std::string out;
  for (const char* name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

Residual::Tree read_tree(const Json& node, std::size_t features) {
  Residual::Tree tree;
  const Json &splits = node.at("splits"), &leaves = node.at("leaves");
  if (splits.size() != Residual::kDepth || leaves.size() != Residual::kLeaves) {
    throw std::length_error("6 splits and 64 leaves");
  }
  for (std::size_t i = 0; i < Residual::kDepth; ++i) {
    const auto feature = splits.at(i).at(0).get<std::size_t>();
    if (feature >= features) throw std::length_error("a feature that exists");
    tree.feature[i] = static_cast<std::uint8_t>(feature);
    tree.threshold[i] = splits.at(i).at(1).get<float>();
  }
  // Leaves are stored in units of 1e-4.
  for (std::size_t i = 0; i < Residual::kLeaves; ++i) {
    tree.leaf[i] = static_cast<float>(leaves.at(i).get<int>()) * 1e-4f;
  }
  return tree;
}

}  // namespace

double Residual::factor(std::span<const float> x) const {
  GPUTWIN_CHECK(x.size() == features.size(), "a model gives all features");
  float sum = 0;
  for (const Tree& tree : trees) {
    unsigned leaf = 0;
    for (std::size_t i = 0; i < kDepth; ++i) {
      leaf |= static_cast<unsigned>(x[tree.feature[i]] > tree.threshold[i]) << i;
    }
    sum += tree.leaf[leaf];
  }
  return std::exp(std::clamp(static_cast<double>(sum), -bound, bound));
}

const IntervalBand& Residual::band(double time_s) const {
  for (const IntervalBand& b : interval) {
    if (time_s < b.below_s) return b;
  }
  return interval.back();
}

std::shared_ptr<const Residual> load_residual(const std::filesystem::path& path,
                                              std::span<const char* const> features) {
  std::ifstream in(path);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "restore the file");
  auto residual = std::make_shared<Residual>();
  residual->name = path.stem().string();
  std::string at;
  try {
    const Json root = Json::parse(in);
    residual->source = root.at("source").get<std::string>();
    residual->bound = root.at("bound").get<double>();
    residual->features = root.at("features").get<std::vector<std::string>>();
    for (const Json& band : root.at("interval")) {
      at = "/interval/" + std::to_string(residual->interval.size());
      residual->interval.push_back({band.at("below_us").get<double>() * 1e-6,
                                    band.at("low").get<double>(), band.at("high").get<double>()});
    }
    for (const Json& tree : root.at("trees")) {
      at = "/trees/" + std::to_string(residual->trees.size());
      residual->trees.push_back(read_tree(tree, residual->features.size()));
    }
  } catch (const std::exception& error) {
    throw InputError(path.string(), at, "", "is not as a residual is written",
                     std::string("refit it: ") + error.what());
  }
  const bool same = std::equal(residual->features.begin(), residual->features.end(),
                               features.begin(), features.end());
  if (!same || residual->interval.empty()) {
    throw InputError(path.string(), "/features", "", "are not those of the model",
                     "refit it; the model has " + joined(features));
  }
  return residual;
}

std::string residual_text(const Residual& residual) {
  std::string out = "{\n \"source\": " + Json(residual.source).dump() +
                    ",\n \"bound\": " + Json(residual.bound).dump() +
                    ",\n \"features\": " + Json(residual.features).dump() + ",\n \"interval\": [";
  for (std::size_t i = 0; i < residual.interval.size(); ++i) {
    const IntervalBand& b = residual.interval[i];
    const Json band{{"below_us", b.below_s * 1e6}, {"low", b.low}, {"high", b.high}};
    out += (i > 0 ? ",\n  " : "\n  ") + band.dump();
  }
  out += "\n ],\n \"trees\": [";
  for (std::size_t t = 0; t < residual.trees.size(); ++t) {
    const Residual::Tree& tree = residual.trees[t];
    out += (t > 0 ? ",\n  {\"splits\": [" : "\n  {\"splits\": [");
    for (std::size_t i = 0; i < Residual::kDepth; ++i) {
      char text[64];
      std::snprintf(text, sizeof text, "%s[%d, %.9g]", i > 0 ? ", " : "", int{tree.feature[i]},
                    static_cast<double>(tree.threshold[i]));
      out += text;
    }
    out += "],\n   \"leaves\": [";
    for (std::size_t i = 0; i < Residual::kLeaves; ++i) {
      out += (i > 0 ? ", " : "") + std::to_string(std::lround(tree.leaf[i] * 1e4));
      if (i % 16 == 15 && i + 1 < Residual::kLeaves) out += "\n    ";
    }
    out += "]}";
  }
  return out + "\n ]\n}\n";
}

}  // namespace gputwin
