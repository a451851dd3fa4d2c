#include "sim/app/search_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/core/spelling.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

double gib(Bytes b) { return static_cast<double>(b.value) / (1 << 30); }

std::string seconds(const std::optional<Seconds>& s) {
  return s ? fmt::format("{:.4g} s", s->value) : "-";
}

std::string row(const std::string& rank, const FoundLayout& f) {
  const Bytes memory = f.simulated ? f.simulated_memory : f.memory;
  std::string line = fmt::format("  {:>4}  {:<50} {:>5}  {:>11}  {:>10}  {:>8.1f} GiB", rank,
                                 layout_words(f.layout), f.layout.ranks(),
                                 f.closed_form.value > 0 ? seconds(f.closed_form) : "-",
                                 seconds(f.simulated), gib(memory));
  // The first clause; the rest, what the framework would say, is in the JSON.
  if (!f.not_simulated.empty()) {
    line += "  refused: " + f.not_simulated.substr(0, f.not_simulated.find(';'));
  }
  return line + "\n";
}

std::string head(const char* first) {
  return fmt::format("  {:>4}  {:<50} {:>5}  {:>11}  {:>10}  {:>12}\n", first, "layout", "GPUs",
                     "closed form", "simulated", "memory");
}

// The front without what hardly differs from the row before: less than 5 % of memory, as many GPUs.
std::string front(const std::vector<FoundLayout>& pareto) {
  std::string text;
  const FoundLayout* shown = nullptr;
  for (const FoundLayout& f : pareto) {
    const bool near = shown != nullptr && f.layout.ranks() >= shown->layout.ranks() &&
                      gib(f.memory) > 0.95 * gib(shown->memory);
    if (near) continue;
    shown = &f;
    text += row("", f);
  }
  return text;
}

std::vector<std::pair<std::string, Rejection>> by_count(const SpaceCount& space) {
  std::vector<std::pair<std::string, Rejection>> list(space.rejected.begin(), space.rejected.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return a.second.layouts > b.second.layouts;
  });
  return list;
}

std::string why_not(const SpaceCount& space) {
  std::string text;
  for (const auto& [reason, r] : by_count(space)) {
    text += fmt::format("  {:>9}  {}", r.layouts, reason);
    if (r.least_short_by.value > 0) {
      text += fmt::format(", at least by {:.2f} GiB", gib(r.least_short_by));
    }
    text += fmt::format("\n             {}\n", r.example);
  }
  return text;
}

// What the best gains over the scenario's own layout; small gains are said to be none.
std::string gain(const SearchResult& result) {
  if (!result.given || result.best.empty() || !result.best[0].simulated) return "";
  if (!result.given->simulated) return "";
  const double ratio = result.given->simulated->value / result.best[0].simulated->value;
  if (ratio < 1.01) return "  the scenario's own layout is within 1 % of the best\n";
  return fmt::format("  {:.2f} times as fast as the scenario's own layout\n", ratio);
}

Json json_of(const FoundLayout& f) {
  const Layout& l = f.layout;
  Json j{{"layout", layout_words(l)},
         {"gpus", l.ranks()},
         {"tp", l.tp},
         {"sp", l.sp},
         {"cp", l.cp},
         {"ep", l.ep},
         {"pp", l.pp},
         {"vpp", l.vpp},
         {"dp", l.dp},
         {"zero", l.zero},
         {"micro_batch", l.micro_batch},
         {"schedule", std::string(to_string(l.schedule))},
         {"closed_form_s", f.closed_form.value > 0 ? Json(f.closed_form.value) : Json()},
         {"closed_form_bytes", f.memory.value}};
  if (!l.recompute_layers.empty()) j["recompute_layers"] = l.recompute_layers;
  if (!l.stage_layers.empty()) j["stage_layers"] = l.stage_layers;
  if (f.simulated) {
    j["simulated_s"] = f.simulated->value;
    j["device_bytes"] = f.simulated_memory.value;
  }
  if (!f.not_simulated.empty()) j["refused"] = f.not_simulated;
  return j;
}

// What methods from the literature would have chosen, and what the best gains over each.
std::string methods_table(const SearchResult& result) {
  std::string text = fmt::format("\n  {:<14}  {:<50} {:>10}  {:>8}\n", "method", "its layout",
                                 "simulated", "of best");
  const bool known = !result.best.empty() && result.best[0].simulated;
  for (const MethodChoice& m : result.methods) {
    if (!m.found) {
      text += fmt::format("  {:<14}  no layout of its kind is possible and fits\n", m.method);
      continue;
    }
    const std::string ratio =
        known && m.found->simulated
            ? fmt::format("{:.2f}x", m.found->simulated->value / result.best[0].simulated->value)
            : "-";
    text += fmt::format("  {:<14}  {:<50} {:>10}  {:>8}{}\n", m.method,
                        layout_words(m.found->layout), seconds(m.found->simulated), ratio,
                        m.found->not_simulated.empty() ? "" : "  refused by the simulation");
  }
  return text;
}

Json list_of(const std::vector<FoundLayout>& list) {
  Json json = Json::array();
  for (const FoundLayout& f : list) json.push_back(json_of(f));
  return json;
}

}  // namespace

std::string search_report(const SearchResult& result, const Scenario& scenario) {
  std::string text =
      fmt::format("{}: {} layouts looked at, {} fit{}\n\n", scenario.name, result.space.looked_at,
                  result.space.feasible, result.stopped ? " (stopped before the end)" : "");
  text += head("rank");
  int rank = 0;
  for (const FoundLayout& f : result.best) {
    text += row(f.simulated ? std::to_string(++rank) : "-", f);
  }
  if (result.best.empty()) {
    for (std::size_t i = 0; i < result.pareto.size() && i < 1; ++i)
      text += row("-", result.pareto[i]);
  }
  if (result.given) text += row("own", *result.given);
  text += gain(result);
  if (!result.methods.empty()) text += methods_table(result);
  text +=
      "\nless memory or fewer GPUs for more time (closed form; steps of at least 5 %)\n" + head("");
  text += front(result.pareto);
  text += "\nwhy not the others\n" + why_not(result.space);
  return text;
}

std::string search_json(const SearchResult& result, const Scenario& scenario) {
  Json rejected = Json::array();
  for (const auto& [reason, r] : by_count(result.space)) {
    Json j{{"reason", reason}, {"layouts", r.layouts}, {"example", r.example}};
    if (r.least_short_by.value > 0) j["least_short_by_bytes"] = r.least_short_by.value;
    rejected.push_back(std::move(j));
  }
  Json methods = Json::array();
  for (const MethodChoice& m : result.methods) {
    methods.push_back(
        {{"method", m.method}, {"what", m.what}, {"choice", m.found ? json_of(*m.found) : Json()}});
  }
  const Json json{{"schema", 1},
                  {"scenario", scenario.name},
                  {"stopped", result.stopped},
                  {"looked_at", result.space.looked_at},
                  {"feasible", result.space.feasible},
                  {"best", list_of(result.best)},
                  {"given", result.given ? json_of(*result.given) : Json()},
                  {"methods", methods},
                  {"pareto", list_of(result.pareto)},
                  {"rejected", rejected}};
  return json.dump(2) + "\n";
}

}  // namespace gputwin
