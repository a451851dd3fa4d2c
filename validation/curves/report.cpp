#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validation/curves/curves.h"
#include "validation/runs/scoring.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

struct CurveErrors {
  std::int32_t n = 0, scored = 0;
  double mean = 0, bias = 0;
  std::optional<double> tau;
};

CurveErrors errors_of(const Curve& curve) {
  CurveErrors e;
  std::vector<double> signed_errors;
  std::vector<std::pair<double, double>> pairs;
  for (const CurvePoint& p : curve.points) {
    if (!p.published) continue;
    ++e.n;
    if (!p.predicted) continue;
    signed_errors.push_back(p.error());
    pairs.emplace_back(*p.published, *p.predicted);
    e.mean += std::abs(p.error());
  }
  e.scored = static_cast<std::int32_t>(signed_errors.size());
  if (e.scored == 0) return e;
  e.mean /= e.scored;
  e.bias = quantile(signed_errors, 0.5);
  e.tau = kendall_tau(pairs);
  return e;
}

std::string billions(double parameters) {
  return parameters > 0 ? fmt::format("{:.1f}B", parameters / 1e9) : "-";
}

std::string rate(const std::optional<double>& tflops) {
  return tflops ? fmt::format("{:.1f}", *tflops) : "-";
}

std::string point_line(const CurvePoint& p) {
  const std::string error =
      p.published && p.predicted ? fmt::format("{:+.1f} %", 100 * p.error()) : "";
  std::string line = fmt::format("    {:28} {:>7} {:>9} {:>9} {:>8}  {}", p.run->id,
                                 billions(p.parameters), rate(p.published), rate(p.predicted),
                                 error, p.micro_batch > 0 ? p.micro_batch : 0);
  if (!p.predicted) line += "  " + p.reason.substr(0, 60);
  return line + "\n";
}

}  // namespace

std::string curves_report(const CurveScores& scores, bool list) {
  std::string out =
      fmt::format("{:46} {:>8} {:>7} {:>7} {:>6}  {:>9} {:>9}\n", "TFLOP/s per GPU by model size",
                  "points", "mean %", "bias %", "tau", "largest", "predicted");
  for (const Curve& c : scores.curves) {
    const CurveErrors e = errors_of(c);
    out += fmt::format("{:46} {:>3}/{:<4} {:>7} {:>7} {:>6}  {:>9} {:>9}\n",
                       fmt::format("{} on {} x {}", c.system, c.devices, c.device), e.scored, e.n,
                       e.scored > 0 ? fmt::format("{:.1f}", 100 * e.mean) : "-",
                       e.scored > 0 ? fmt::format("{:+.1f}", 100 * e.bias) : "-",
                       e.tau ? fmt::format("{:.2f}", *e.tau) : "-", billions(c.largest_published()),
                       billions(c.largest_predicted()));
    if (!list) continue;
    out += fmt::format("    {:28} {:>7} {:>9} {:>9} {:>8}  {}\n", "", "model", "published",
                       "predicted", "error", "micro-batch");
    for (const CurvePoint& p : c.points) out += point_line(p);
  }
  out += fmt::format("\nOrder of systems at equal size: {} of {} pairs as published\n",
                     scores.systems.right, scores.systems.pairs);
  for (const std::string& w : scores.systems.wrong) out += "  not: " + w + "\n";
  return out;
}

std::string curves_json(const CurveScores& scores) {
  Json curves = Json::array();
  const auto figure = [](const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); };
  for (const Curve& c : scores.curves) {
    const CurveErrors e = errors_of(c);
    Json points = Json::array();
    for (const CurvePoint& p : c.points) {
      points.push_back({{"id", p.run->id},
                        {"parameters", p.parameters},
                        {"published_tflops", figure(p.published)},
                        {"predicted_tflops", figure(p.predicted)},
                        {"micro_batch", p.micro_batch},
                        {"reason", p.predicted ? "" : p.reason}});
    }
    curves.push_back({{"system", c.system},
                      {"device", c.device},
                      {"devices", c.devices},
                      {"n", e.n},
                      {"predicted", e.scored},
                      {"mean", e.mean},
                      {"bias", e.bias},
                      {"tau", figure(e.tau)},
                      {"largest_published", c.largest_published()},
                      {"largest_predicted", c.largest_predicted()},
                      {"points", std::move(points)}});
  }
  const Json out{{"curves", std::move(curves)},
                 {"order_of_systems",
                  {{"pairs", scores.systems.pairs},
                   {"right", scores.systems.right},
                   {"wrong", scores.systems.wrong}}}};
  return out.dump(2) + "\n";
}

}  // namespace gputwin
