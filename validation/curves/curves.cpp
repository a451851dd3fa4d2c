#include "validation/curves/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& object, const char* key, double otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

const Json& part(const Json& config, const char* key) {
  static const Json nothing = Json::object();
  const auto found = config.find(key);
  return found != config.end() && found->is_object() ? *found : nothing;
}

double parameters_of(const Json& config) {
  const Json& model = part(config, "model");
  if (const double stated = number(model, "params", 0); stated > 0) return stated;
  const double hidden = number(model, "hidden", 0), ffn = number(model, "ffn", 4 * hidden);
  return number(model, "layers", 0) * (4 * hidden * hidden + 2 * hidden * ffn) +
         number(model, "vocab", 0) * hidden;
}

bool has_batch(const Json& config) { return number(part(config, "batch"), "micro", 0) > 0; }

// A run with each micro-batch that may have been used.
struct Tried {
  std::size_t point = 0;
  std::int64_t micro_batch = 0;
  PublishedRun run;
};

std::vector<Tried> tried_runs(const std::vector<const PublishedRun*>& asked) {
  std::vector<Tried> list;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Json& config = asked[i]->config;
    if (has_batch(config)) {
      const auto micro = static_cast<std::int64_t>(number(part(config, "batch"), "micro", 1));
      list.push_back({i, micro, *asked[i]});
      continue;
    }
    for (const std::int64_t micro : tried_micro_batches()) {
      Tried t{i, micro, *asked[i]};
      const auto ranks = static_cast<std::int64_t>(number(part(config, "parallel"), "dp", 1));
      t.run.config["batch"] = {{"micro", micro}, {"global", micro * ranks}};
      list.push_back(std::move(t));
    }
  }
  return list;
}

bool same_model(const CurvePoint& a, const CurvePoint& b) {
  return std::abs(a.parameters / b.parameters - 1) < 0.03;
}

void compare(const Curve& a, const Curve& b, OrderCount& count) {
  for (const CurvePoint& p : a.points) {
    for (const CurvePoint& q : b.points) {
      if (!same_model(p, q) || !p.published || !q.published) continue;
      const double published = *p.published / *q.published;
      // Not further apart than such charts are read.
      if (std::abs(published - 1) < 0.02) continue;
      ++count.pairs;
      const double predicted = p.predicted.value_or(0) / std::max(q.predicted.value_or(0), 1e-9);
      if ((published > 1) == (predicted > 1)) {
        ++count.right;
      } else {
        count.wrong.push_back(fmt::format("{} over {}: published {:.2f}, predicted {:.2f}",
                                          p.run->id, q.run->id, published, predicted));
      }
    }
  }
}

}  // namespace

std::vector<std::int64_t> tried_micro_batches() { return {2, 4, 8, 16, 32, 64}; }

double curve_tflops(const Json& config, double time_s, std::int64_t micro_batch) {
  const double ranks = number(part(config, "parallel"), "dp", 1);
  const double samples = has_batch(config) ? number(part(config, "batch"), "global", 0)
                                           : static_cast<double>(micro_batch) * ranks;
  const auto recompute = config.find("recompute");
  const bool full = recompute != config.end() && *recompute == "full";
  const double tokens = samples * number(part(config, "model"), "seq", 0);
  const double devices = number(config, "devices", 1);
  return (full ? 8 : 6) * parameters_of(config) * tokens / time_s / devices / 1e12;
}

double Curve::largest_published() const {
  double most = 0;
  for (const CurvePoint& p : points) {
    if (p.published) most = std::max(most, p.parameters);
  }
  return most;
}

double Curve::largest_predicted() const {
  double most = 0;
  for (const CurvePoint& p : points) {
    if (p.predicted) most = std::max(most, p.parameters);
  }
  return most;
}

CurveScores score_curves(const std::vector<PublishedRun>& runs, WorkerPool& pool,
                         const PredictOptions& options) {
  std::vector<const PublishedRun*> asked;
  for (const PublishedRun& r : runs) {
    if (r.target.time_s || r.target.tflops || !r.target.trains) asked.push_back(&r);
  }
  const std::vector<Tried> tried = tried_runs(asked);
  std::vector<PredictionRequest> requests;
  for (const Tried& t : tried) requests.push_back({&t.run, {{"unlimited_memory", false}}});
  const std::vector<Prediction> predictions = predict(requests, pool, options);

  std::map<std::tuple<std::string, std::string, std::int64_t>, Curve> curves;
  std::vector<CurvePoint> points(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const PublishedRun& run = *asked[i];
    points[i].run = &run;
    points[i].parameters = parameters_of(run.config);
    if (run.target.trains) {
      points[i].published =
          run.target.tflops ? *run.target.tflops : curve_tflops(run.config, *run.target.time_s, 0);
    }
  }
  for (std::size_t k = 0; k < tried.size(); ++k) {
    CurvePoint& p = points[tried[k].point];
    if (predictions[k].status != RowStatus::Ok) {
      p.reason = predictions[k].reason;
      continue;
    }
    const double rate = curve_tflops(p.run->config, predictions[k].time_s, tried[k].micro_batch);
    if (p.predicted && rate <= *p.predicted) continue;
    p.predicted = rate;
    p.micro_batch = tried[k].micro_batch;
  }
  for (CurvePoint& p : points) {
    const Json& config = p.run->config;
    const auto devices = static_cast<std::int64_t>(number(config, "devices", 1));
    const std::string device = config.value("device_id", "mixed");
    Curve& c = curves[{p.run->group, device, devices}];
    c.system = p.run->group;
    c.device = device;
    c.devices = devices;
    c.points.push_back(std::move(p));
  }
  CurveScores scores;
  for (auto& [key, curve] : curves) {
    std::stable_sort(curve.points.begin(), curve.points.end(),
                     [](const auto& a, const auto& b) { return a.parameters < b.parameters; });
    scores.curves.push_back(std::move(curve));
  }
  for (std::size_t a = 0; a < scores.curves.size(); ++a) {
    for (std::size_t b = a + 1; b < scores.curves.size(); ++b) {
      const Curve &x = scores.curves[a], &y = scores.curves[b];
      if (x.device == y.device && x.devices == y.devices) compare(x, y, scores.systems);
    }
  }
  return scores;
}

}  // namespace gputwin
