#include "validation/runs/predict.h"

#include <algorithm>

#include "validation/runs/row_scenario.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

double largest(const Json& roles, std::initializer_list<const char*> keys) {
  double most = 0;
  for (const Json& role : roles) {
    double sum = 0;
    for (const char* key : keys) sum += role.at(key).get<double>();
    most = std::max(most, sum);
  }
  return most;
}

// The figure that a source of `kind` means.
std::optional<double> memory_figure(const Json& memory, const std::string& kind) {
  const Json& roles = memory.at("by_role");
  if (kind == "allocated") return memory.at("peak_allocated_bytes").get<double>();
  if (kind == "reserved" || kind == "peak-unspecified") {
    return memory.at("peak_reserved_bytes").get<double>();
  }
  if (kind == "nvidia-smi") return memory.at("peak_device_bytes").get<double>();
  if (kind == "model-states") {
    return largest(roles, {"weights_bytes", "gradients_bytes", "optimizer_bytes"});
  }
  if (kind == "activations") return largest(roles, {"activations_bytes"});
  return std::nullopt;
}

Prediction read_answer(const Json& answer, const std::string& memory_kind) {
  Prediction p;
  const std::string status = answer.at("status").get<std::string>();
  if (status != "ok") {
    p.reason = answer.at("reason").get<std::string>();
    const bool planned = p.reason.find("not supported yet") != std::string::npos ||
                         p.reason.find("not lowered yet") != std::string::npos;
    p.status = planned                  ? RowStatus::Unsupported
               : status == "infeasible" ? RowStatus::Infeasible
                                        : RowStatus::Error;
    return p;
  }
  const Json& result = answer.at("result");
  p.status = RowStatus::Ok;
  p.time_s = result.at("iteration_time_s").get<double>();
  p.low_s = result.at("interval_s").at(0).get<double>();
  p.high_s = result.at("interval_s").at(1).get<double>();
  p.memory_bytes = memory_figure(result.at("memory"), memory_kind);
  return p;
}

}  // namespace

std::string_view to_string(RowStatus status) {
  constexpr std::array<std::string_view, 4> words{"ok", "unsupported", "infeasible", "error"};
  return words[static_cast<std::size_t>(status)];
}

std::function<bool(double)> PassProgress::next(double weight) {
  done_ += weight_;
  weight_ = weight;
  const auto told = [this](double share) {
    return !tell_ || tell_(std::min(1.0, (done_ + weight_ * share) / weights_));
  };
  return told;
}

std::vector<Prediction> predict(const std::vector<PredictionRequest>& requests, WorkerPool& pool,
                                const PredictOptions& options) {
  std::vector<Prediction> predictions(requests.size());
  std::vector<Json> asked;
  std::vector<std::size_t> answered;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const PublishedRun& run = *requests[i].run;
    auto scenario = row_scenario(run.id, run.config);
    if (const auto* no = std::get_if<Unsupported>(&scenario)) {
      predictions[i].status = RowStatus::Unsupported;
      predictions[i].reason = no->reason;
      continue;
    }
    Json& document = std::get<Json>(scenario);
    document["what_if"].merge_patch(options.what_if);
    document["what_if"].merge_patch(requests[i].what_if);
    asked.push_back({{"name", run.id},
                     {"scenario", std::move(document)},
                     {"time_limit_s", options.time_limit_s},
                     {"exact", options.exact}});
    answered.push_back(i);
  }
  const std::vector<Json> answers = pool.run(asked, options.progress);
  for (std::size_t k = 0; k < answered.size(); ++k) {
    const std::size_t i = answered[k];
    predictions[i] = read_answer(answers[k], requests[i].run->target.memory_kind);
  }
  return predictions;
}

std::vector<Prediction> predict(const std::vector<PublishedRun>& runs, WorkerPool& pool,
                                const PredictOptions& options) {
  std::vector<PredictionRequest> requests;
  for (const PublishedRun& run : runs) requests.push_back({&run, Json::object()});
  return predict(requests, pool, options);
}

}  // namespace gputwin
