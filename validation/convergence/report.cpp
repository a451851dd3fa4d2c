#include "validation/convergence/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace gputwin::convergence {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 8> kColours{"#222222", "#4477aa", "#66ccee", "#228833",
                                              "#ccbb44", "#ee6677", "#aa3377", "#999999"};
constexpr double kLeft = 56, kTop = 16, kWidth = 620, kHeight = 340;

// Mean loss of the curves of one codec at each step, then the mean of the steps around it.
std::vector<double> smooth_mean(const std::vector<Curve>& curves, const std::string& codec) {
  std::vector<double> mean;
  double count = 0;
  for (const Curve& c : curves) {
    if (c.codec != codec) continue;
    mean.resize(c.losses.size());
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += c.losses[i];
    ++count;
  }
  const std::size_t around = mean.size() / 40;
  std::vector<double> smooth(mean.size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const std::size_t from = i > around ? i - around : 0;
    const std::size_t to = std::min(mean.size(), i + around + 1);
    for (std::size_t j = from; j < to; ++j) smooth[i] += mean[j];
    smooth[i] /= count * static_cast<double>(to - from);
  }
  return smooth;
}

struct Axis {
  double low = 0, high = 1;
  double at(double v) const { return (v - low) / (high - low); }
};

std::string grid(const Axis& loss, const Axis& step) {
  std::string out;
  for (int i = 0; i <= 5; ++i) {
    const double y = kTop + kHeight * (1 - i / 5.0), x = kLeft + kWidth * i / 5.0;
    out += fmt::format("<path d=\"M{:.0f} {:.1f}H{:.0f}\" stroke=\"#ddd\"/>\n", kLeft, y,
                       kLeft + kWidth);
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.2f}</text>\n",
                       kLeft - 6, y + 4, loss.low + (loss.high - loss.low) * i / 5);
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">{:.0f}</text>\n", x,
                       kTop + kHeight + 18, step.low + (step.high - step.low) * i / 5);
  }
  return out;
}

Json curve_json(const Curve& c) {
  return {{"codec", c.codec},
          {"seed", c.seed},
          {"final_loss", final_loss(c)},
          {"held_out_loss", c.held_out},
          {"payload_share", c.share},
          {"relative_square_error", c.error},
          {"losses", c.losses}};
}

}  // namespace

std::vector<Compared> compare(const std::vector<Curve>& curves) {
  std::map<std::int32_t, double> plain;
  for (const Curve& c : curves) {
    if (c.codec == curves.front().codec) plain[c.seed] = c.held_out;
  }
  std::vector<Compared> all;
  std::vector<std::vector<double>> changes;
  for (const Curve& c : curves) {
    if (plain.count(c.seed) == 0) continue;
    auto at = std::find_if(all.begin(), all.end(),
                           [&](const Compared& other) { return other.codec == c.codec; });
    if (at == all.end()) {
      at = all.insert(at, Compared{c.codec, 0, 0, 0, 0, 0, 0, 0});
      changes.emplace_back();
    }
    ++at->seeds;
    at->share += c.share;
    at->error += c.error;
    at->final_loss += final_loss(c);
    at->held_out += c.held_out;
    changes[static_cast<std::size_t>(at - all.begin())].push_back(c.held_out - plain[c.seed]);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    Compared& a = all[i];
    const auto n = static_cast<double>(a.seeds);
    for (double* v : {&a.share, &a.error, &a.final_loss, &a.held_out}) *v /= n;
    double squares = 0;
    for (const double c : changes[i]) a.change += c / n;
    for (const double c : changes[i]) squares += (c - a.change) * (c - a.change);
    a.change_deviation = n > 1 ? std::sqrt(squares / (n - 1)) : 0;
  }
  return all;
}

std::string convergence_table(const Experiment& e, const std::vector<Curve>& curves) {
  std::string out = fmt::format(
      "{} parameters, {} tensor-parallel ranks, {} steps of {} characters (the first {} not "
      "compressed)\n\n{:<18}{:>7}{:>10}{:>12}{:>12}{:>10}{:>10}{:>8}\n",
      nn::parameter_count(e.shape), e.ranks, e.steps, e.sequences * e.shape.length, e.plain_steps,
      "codec", "seeds", "bytes", "error", "final loss", "held out", "change", "+-");
  for (const Compared& c : compare(curves)) {
    out += fmt::format("{:<18}{:>7}{:>10.4f}{:>12.6f}{:>12.4f}{:>10.4f}{:>+10.4f}{:>8.4f}\n",
                       c.codec, c.seeds, c.share, c.error, c.final_loss, c.held_out, c.change,
                       c.change_deviation);
  }
  return out +
         "\nbytes: payload / 16-bit tensor; error: |code - x|^2 / |x|^2; losses in nats per "
         "character\n";
}

std::string convergence_json(const Experiment& e, const std::vector<Curve>& curves) {
  Json j{{"parameters", nn::parameter_count(e.shape)},
         {"ranks", e.ranks},
         {"steps", e.steps},
         {"plain_steps", e.plain_steps},
         {"characters_per_step", e.sequences * e.shape.length},
         {"codecs", Json::array()},
         {"curves", Json::array()}};
  for (const Compared& c : compare(curves)) {
    j["codecs"].push_back({{"codec", c.codec},
                           {"seeds", c.seeds},
                           {"payload_share", c.share},
                           {"relative_square_error", c.error},
                           {"final_loss", c.final_loss},
                           {"held_out_loss", c.held_out},
                           {"change", c.change},
                           {"change_deviation", c.change_deviation}});
  }
  for (const Curve& c : curves) j["curves"].push_back(curve_json(c));
  return j.dump(1) + "\n";
}

std::string convergence_svg(const Experiment& e, const std::vector<Curve>& curves) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 840 400\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"840\" height=\"400\" "
      "fill=\"white\"/>\n");
  const std::vector<Compared> codecs = compare(curves);
  Axis loss{1e30, -1e30};
  const Axis step{0, static_cast<double>(e.steps)};
  std::vector<std::vector<double>> lines;
  for (const Compared& c : codecs) {
    lines.push_back(smooth_mean(curves, c.codec));
    for (const double v : lines.back()) {
      if (!std::isfinite(v)) continue;
      loss.low = std::min(loss.low, v);
      loss.high = std::max(loss.high, v);
    }
  }
  if (loss.high <= loss.low) return out + "</svg>\n";
  out += grid(loss, step);
  for (std::size_t l = 0; l < lines.size(); ++l) {
    const char* colour = kColours[l % kColours.size()];
    std::string points;
    for (std::size_t i = 0; i < lines[l].size(); ++i) {
      if (!std::isfinite(lines[l][i])) break;  // the run diverged
      points += fmt::format("{:.1f},{:.1f} ", kLeft + kWidth * step.at(static_cast<double>(i + 1)),
                            kTop + kHeight * (1 - loss.at(lines[l][i])));
    }
    out +=
        fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" points=\"{}\"/>\n",
                    colour, points);
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"{}\">{} {:.3f}</text>\n",
                       kLeft + kWidth + 12, kTop + 14 + 18.0 * static_cast<double>(l), colour,
                       codecs[l].codec, codecs[l].final_loss);
  }
  out += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\">loss (nats per character) against steps; "
      "mean of seeds; at the right, over the last tenth</text>\n</svg>\n",
      kLeft, kTop + kHeight + 36);
  return out;
}

}  // namespace gputwin::convergence
