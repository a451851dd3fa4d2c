#include "sim/app/pass_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/app/pass_figures.h"
#include "sim/core/codec.h"
#include "strategies/passes/choose.h"

namespace gputwin {
namespace {

/// A layout, its plan and its run.
struct Tried {
  Layout layout;
  double gain_bound = 1;
  Plan plan{};
  Execution execution{};
};

class Comparison {
 public:
  Comparison(const Scenario& scenario, const CostModel& costs, const Topology& topology,
             const LayoutTrial& trial)
      : scenario_(scenario),
        asked_(scenario.layout),
        prices_{&costs, &topology},
        trial_(trial),
        blocking_{.layout = without_passes(asked_)} {}

  std::variant<PassComparison, Infeasible, Deadlock, Cancelled> compare() {
    auto choice = choose(asked_);
    if (auto* infeasible = std::get_if<Infeasible>(&choice)) return std::move(*infeasible);
    auto& chosen = std::get<PassChoice>(choice);
    passes_ = {.layout = std::move(chosen.layout), .gain_bound = chosen.gain_bound};
    for (Tried* tried : {&blocking_, &passes_}) {
      Simulated outcome = trial_(tried->layout, tried->plan);
      if (auto* infeasible = std::get_if<Infeasible>(&outcome)) return std::move(*infeasible);
      if (auto* deadlock = std::get_if<Deadlock>(&outcome)) return std::move(*deadlock);
      if (std::holds_alternative<Cancelled>(outcome)) return Cancelled{};
      tried->execution = std::move(std::get<Execution>(outcome));
    }
    if (searches_chunks()) take_equal_chunks();
    if (asked_.compression.search) drop_losing_codecs();
    const auto* model = std::get_if<Transformer>(&scenario_.workload);
    return verdict(model != nullptr ? model->hidden : kGradientRow);
  }

 private:
  /// Layer graphs leave nothing open.
  Outcome<PassChoice> choose(const Layout& layout) const {
    const auto* model = std::get_if<Transformer>(&scenario_.workload);
    if (model == nullptr) return PassChoice{.layout = layout};
    return choose_passes(*model, scenario_.cluster, layout, scenario_.job, prices_);
  }

  bool searches_chunks() const { return asked_.chunk_overlap.on() && !asked_.chunk_overlap.equal; }

  /// True if `other` runs and takes less time than what there is (or as much, if `ties`): then it
  /// is what there is.
  bool take(Tried other, bool ties) {
    Simulated outcome = trial_(other.layout, other.plan);
    auto* execution = std::get_if<Execution>(&outcome);
    if (execution == nullptr || execution->iteration > passes_.execution.iteration) return false;
    if (!ties && execution->iteration == passes_.execution.iteration) return false;
    other.execution = std::move(*execution);
    passes_ = std::move(other);
    return true;
  }

  /// The costs of a middle layer do not know the ends of the model, nor what a schedule puts
  /// between passes: equal chunks can be better.
  void take_equal_chunks() {
    const Layout searched = passes_.layout;
    for (std::int32_t k = 2; k <= asked_.chunk_overlap.max_chunks; ++k) {
      Layout other = searched;
      other.chunk_overlap = {.max_chunks = k, .equal = true, .split = asked_.chunk_overlap.split};
      auto choice = choose(other);
      auto* equal = std::get_if<PassChoice>(&choice);
      if (equal == nullptr) return;
      const ChunkOverlap& cut = equal->layout.chunk_overlap;
      if (cut.forward.size() < static_cast<std::size_t>(k)) return;  // no more parts
      const ChunkOverlap& now = searched.chunk_overlap;
      if (cut.forward == now.forward && cut.backward == now.backward) continue;
      other.chunk_overlap = now;
      other.chunk_overlap.forward = cut.forward;
      other.chunk_overlap.backward = cut.backward;
      if (take({.layout = std::move(other), .gain_bound = equal->gain_bound}, false)) {
        equal_chunks_ = k;
      }
    }
  }

  /// A searched layout again without the codecs of gradients, and without those of messages: what
  /// is not slower without them is taken, and said.
  void drop_losing_codecs() {
    const auto without = [&](const char* what, bool on, auto clear) {
      if (!on) return;
      Tried other{.layout = passes_.layout, .gain_bound = passes_.gain_bound};
      clear(other.layout.compression);
      if (!take(std::move(other), true)) return;
      dropped_ += fmt::format(" Codecs of {} are left out: nothing is gained by them.", what);
    };
    const Compression chosen = passes_.layout.compression;
    without("gradients", chosen.on_gradients(), [](Compression& c) { c.reduced = {}; });
    without("messages", chosen.on_messages(), [](Compression& c) { c.sent = c.sent_back = {}; });
  }

  PassComparison verdict(std::int64_t width) {
    PassComparison result;
    PassFigures& f = result.figures;
    f = pass_figures(passes_.layout, blocking_.plan, passes_.plan, width);
    f.gain_bound = passes_.gain_bound;
    judge(f, blocking_.execution, passes_.execution);
    if (equal_chunks_ > 0) {
      f.verdict +=
          fmt::format(" {} equal chunks run faster than those of the search.", equal_chunks_);
    }
    f.verdict += dropped_;
    result.layout = std::move(passes_.layout);
    const bool searched = searches_chunks() || asked_.compression.search;
    if (searched && passes_.execution.iteration >= blocking_.execution.iteration) {
      result.layout = blocking_.layout;
      f.verdict += " They are left out of this run.";
      f.bytes = f.blocking_bytes;
      f.exposed = f.blocking_exposed;
      f.exposed_dp = f.blocking_exposed_dp;
      f.exposed_pp = f.blocking_exposed_pp;
      for (CodedClass& c : f.classes) c.bytes = c.blocking_bytes;
    }
    return result;
  }

  const Scenario& scenario_;
  const Layout& asked_;
  const StagePrices prices_;
  const LayoutTrial& trial_;
  Tried blocking_, passes_;
  std::int32_t equal_chunks_ = 0;  // of those that run faster than the searched ones
  std::string dropped_;            // sentences
};

}  // namespace

std::variant<PassComparison, Infeasible, Deadlock, Cancelled> compare_passes(
    const Scenario& scenario, const CostModel& costs, const Topology& topology,
    const LayoutTrial& trial) {
  return Comparison(scenario, costs, topology, trial).compare();
}

}  // namespace gputwin
