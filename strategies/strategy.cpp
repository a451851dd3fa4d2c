#include "strategies/strategy.h"

#include <chrono>
#include <optional>

#include "sim/core/spelling.h"
#include "sim/core/verify.h"
#include "strategies/lowering/layer_graph.h"
#include "strategies/lowering/stack_kernels.h"
#include "strategies/lowering/transformer.h"
#include "strategies/passes/choose.h"
#include "strategies/passes/choose_exchange.h"
#include "strategies/passes/compress.h"
#include "strategies/passes/fused_bound.h"
#include "strategies/passes/offload.h"
#include "strategies/passes/overlap.h"
#include "strategies/passes/recompute.h"
#include "strategies/passes/single_queue.h"
#include "strategies/passes/split_backward.h"
#include "strategies/registry.h"
#include "strategies/schedules/emit.h"
#include "strategies/schedules/pass_costs.h"

namespace gputwin {
namespace {

// Runs the steps by name and notes how long each takes.
class Stopwatch {
 public:
  explicit Stopwatch(std::vector<StepTime>* times) : times_(times) {}

  template <class Step>
  auto run(const char* name, Step step) {
    const auto start = std::chrono::steady_clock::now();
    auto result = step();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (times_ != nullptr) times_->push_back({name, Seconds(spent.count())});
    return result;
  }

 private:
  std::vector<StepTime>* times_;
};

bool weighs_passes(Schedule s) { return s == Schedule::Zb1p || s == Schedule::Zb2p; }

std::vector<StageTable> tables_of(const Lowered& lowered, const Cluster& cluster,
                                  const CostModel* costs) {
  const Layout& layout = lowered.layout;
  if (costs == nullptr || !weighs_passes(layout.schedule)) {
    return schedule_tables(layout, lowered.micro_batches);
  }
  const Topology topology(cluster);
  return schedule_tables(layout, lowered.micro_batches, pass_costs(lowered, *costs, topology),
                         message_seconds(lowered, *costs, topology));
}

// Compressed, recomputed and cut into chunks, as the layout says.
Outcome<Lowered> with_passes(Stopwatch& watch, const Transformer& model, const Cluster& cluster,
                             Lowered lowered, const Job& job, const CostModel* costs) {
  const Layout& asked = lowered.layout;
  const bool asks = asked.chunk_overlap.on() || asked.compression.on();
  const bool bound = asked.tp_overlap == TpOverlap::FusedBound;
  std::optional<Topology> topology;
  if (asks || bound) topology.emplace(cluster);
  const StagePrices prices{.costs = costs, .topology = topology ? &*topology : nullptr};
  Outcome<Lowered> made = watch.run("compress", [&]() -> Outcome<Lowered> {
    if (!asks) return std::move(lowered);
    auto choice = choose_passes(model, cluster, asked, job, prices);
    if (auto* refused = std::get_if<Infeasible>(&choice)) return std::move(*refused);
    lowered.layout = std::get<PassChoice>(choice).layout;
    return compress(std::move(lowered));
  });
  if (auto* refused = std::get_if<Infeasible>(&made)) return std::move(*refused);
  lowered = std::move(std::get<Lowered>(made));
  lowered = watch.run("recompute", [&] { return recompute(std::move(lowered)); });
  return watch.run("overlap", [&] {
    if (bound) return fused_bound(std::move(lowered), prices);
    return asks ? overlap(std::move(lowered), prices) : std::move(lowered);
  });
}

// With the way in which ranks that share experts exchange rows.
Outcome<Layout> with_exchange(const Transformer& model, const Cluster& cluster,
                              const Layout& layout, const Job& job, const CostModel* costs) {
  if (layout.ep_comm == ExpertComm::Flat) return layout;
  const Topology topology(cluster);
  return choose_exchange(model, cluster, layout, job, {.costs = costs, .topology = &topology});
}

}  // namespace

std::vector<StepInfo> steps() {
  std::vector<StepInfo> list;
  for (const StepEntry& s : step_table()) list.push_back({s.name, s.what, false});
  for (const ScheduleEntry& s : schedule_table()) list.push_back({s.name, s.what, true});
  return list;
}

Outcome<Plan> make_plan(const Workload& workload, const Cluster& cluster, const Layout& asked,
                        const Job& job, std::vector<StepTime>* times, const CostModel* costs,
                        Plugins plugins) {
  Stopwatch watch(times);
  if (const auto* graph = std::get_if<LayerGraph>(&workload)) {
    if (asked.offload.enabled) {
      return Infeasible{.reason = "not lowered yet: offload of layer graphs",
                        .fix = "leave the pass offload out"};
    }
    Outcome<Plan> outcome =
        watch.run("lower", [&] { return lower_graph(*graph, cluster, asked, job); });
    if (const Plan* plan = std::get_if<Plan>(&outcome)) {
      watch.run("verify", [&] {
        verify_or_throw(*plan, "lower");
        return 0;
      });
    }
    return outcome;
  }
  const auto* transformer = std::get_if<Transformer>(&workload);
  Outcome<Layout> exchange = with_exchange(*transformer, cluster, asked, job, costs);
  if (auto* refused = std::get_if<Infeasible>(&exchange)) return std::move(*refused);
  const Layout& layout = std::get<Layout>(exchange);
  auto outcome = watch.run("lower", [&] { return lower(*transformer, cluster, layout, job); });
  if (auto* refused = std::get_if<Infeasible>(&outcome)) return std::move(*refused);
  outcome =
      with_passes(watch, *transformer, cluster, std::move(std::get<Lowered>(outcome)), job, costs);
  if (auto* refused = std::get_if<Infeasible>(&outcome)) return std::move(*refused);
  Lowered lowered = std::move(std::get<Lowered>(outcome));
  lowered = watch.run("split", [&] {
    return splits_backward(layout.schedule) ? split_backward(std::move(lowered))
                                            : std::move(lowered);
  });
  outcome = plugin_segments(plugins, std::move(lowered), job);
  if (auto* refused = std::get_if<Infeasible>(&outcome)) return std::move(*refused);
  lowered = std::move(std::get<Lowered>(outcome));
  auto ordered =
      plugin_schedule(plugins, layout, lowered.micro_batches, tables_of(lowered, cluster, costs));
  if (auto* refused = std::get_if<Infeasible>(&ordered)) return std::move(*refused);
  const auto& tables = std::get<std::vector<StageTable>>(ordered);
  Templates templates =
      watch.run("derive", [&] { return derive_templates(std::move(lowered), tables); });
  Plan plan = watch.run("schedule", [&] { return emit(std::move(templates), tables); });
  if (layout.single_queue) plan = single_queue(std::move(plan));
  Outcome<Plan> moved = watch.run("offload", [&]() -> Outcome<Plan> {
    if (!layout.offload.enabled) return std::move(plan);
    verify_or_throw(plan, "schedule");
    const Topology topology(cluster);
    return offload(std::move(plan), layout, costs, &topology);
  });
  if (auto* refused = std::get_if<Infeasible>(&moved)) return std::move(*refused);
  plan = std::move(std::get<Plan>(moved));
  watch.run("verify", [&] {
    verify_or_throw(plan, layout.offload.enabled ? "offload" : "schedule");
    return 0;
  });
  return plugin_plan(plugins, std::move(plan), layout, job);
}

std::vector<std::string> assumptions(const Layout& layout, const Job& job) {
  std::vector<std::string> list;
  if (layout.tp_overlap == TpOverlap::FusedBound) {
    list.push_back(
        "tp_overlap fused-bound is an ideal bound, not a strategy: a product and its exchange take "
        "the longer of both and one tile; what runs under an exchange counts as exposed tp");
  }
  for (std::string& note : chunk_notes(layout, job)) list.push_back(std::move(note));
  if (never_drains(layout.schedule)) {
    list.push_back("schedule " + std::string(to_string(layout.schedule)) +
                   " never drains: gradients are those of older weights (stale); what that does to "
                   "accuracy is not modelled");
  }
  if (find_stack(job.stack) == nullptr) {
    list.push_back("software stack \"" + job.stack +
                   "\" has no kernel table of its own; that of \"" +
                   std::string(nearest_stack(job.stack, layout.zero).family) + "\" is used");
  }
  return list;
}

}  // namespace gputwin
