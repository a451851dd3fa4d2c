#include "sim/app/fitting.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "sim/app/pass_figures.h"
#include "sim/core/spelling.h"
#include "sim/engine/simgrid_executor.h"
#include "strategies/offload/strategies.h"
#include "strategies/strategy.h"

namespace gputwin {
namespace {

constexpr double kGiB = 1 << 30;

/// The stack's settings with those that the job states.
AllocatorOptions allocator_of(const Scenario& scenario, const HardwareModel& costs) {
  AllocatorOptions options = costs.stack(DeviceKindId(0)).allocator;
  const AllocatorChoice& stated = scenario.allocator;
  options.expandable_segments = stated.expandable_segments.value_or(options.expandable_segments);
  options.max_split_size = stated.max_split_size.value_or(options.max_split_size);
  options.roundup_power2_divisions =
      stated.roundup_power2_divisions.value_or(options.roundup_power2_divisions);
  return options;
}

std::string offload_change(const Layout& from, const Layout& to) {
  const std::string pass =
      fmt::format(R"({{"offload":{{"strategy":"{}"}}}})", offload_name(to.offload));
  if (has_passes(from)) return "in passes " + pass;
  return fmt::format("passes=[{}]", pass);
}

/// The keys in which the two differ.
std::string difference(const Layout& from, const Layout& to) {
  std::vector<std::string> parts;
  const auto number = [&](const char* key, std::int64_t a, std::int64_t b) {
    if (a != b) parts.push_back(fmt::format("layout.{}={}", key, b));
  };
  if (!(from.offload == to.offload)) parts.push_back(offload_change(from, to));
  number("tp", from.tp, to.tp);
  number("pp", from.pp, to.pp);
  if (from.schedule != to.schedule) {
    parts.push_back(fmt::format("layout.schedule={}", to_string(to.schedule)));
  }
  if (from.recompute != to.recompute) {
    parts.push_back(fmt::format("layout.recompute={}", to_string(to.recompute)));
  }
  number("zero", from.zero, to.zero);
  if (from.sp != to.sp) parts.push_back(fmt::format("layout.sp={}", to.sp));
  if (from.tp_overlap != to.tp_overlap) {
    parts.push_back(fmt::format("layout.tp_overlap={}", to_string(to.tp_overlap)));
  }
  number("micro_batch", from.micro_batch, to.micro_batch);
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Candidates, each a change of the layout they start from.
class Candidates {
 public:
  explicit Candidates(const Layout& from) : from_(from) {}

  void add(const std::function<void(Layout&)>& change) {
    Layout changed = from_;
    change(changed);
    if (changed == from_) return;
    if (std::find(list_.begin(), list_.end(), changed) == list_.end()) list_.push_back(changed);
  }
  const std::vector<Layout>& list() const { return list_; }

 private:
  const Layout& from_;
  std::vector<Layout> list_;
};

void recompute_all(Layout& l) {
  l.recompute = Recompute::Full;
  l.recompute_layers.clear();
  l.recompute_modules = 0;
}

/// Shards as far as the layout can. Parameters are gathered for every micro-batch: a pipeline has
/// many in flight.
void shard_all(Layout& l) {
  if (l.dp * l.cp > 1) l.zero = std::max(l.zero, l.pp == 1 ? 3 : 2);
}

/// Nothing leaves the GPU, as cheap as that goes: where the host is what is too small.
void add_without_offload(Candidates& c) {
  const auto stays = [](Layout& l) { l.offload = {}; };
  c.add(stays);
  c.add([&](Layout& l) {
    stays(l);
    l.zero = std::max(l.zero, l.dp * l.cp > 1 ? 1 : 0);
  });
  c.add([&](Layout& l) {
    stays(l);
    recompute_all(l);
  });
  c.add([&](Layout& l) {
    stays(l);
    recompute_all(l);
    shard_all(l);
    l.sp = l.tp > 1;
    l.micro_batch = 1;
  });
}

/// Changes that save memory, cheapest in time first.
std::vector<Layout> lighter_layouts(const Layout& from, bool has_nvme) {
  Candidates c(from);
  if (from.offload.enabled) add_without_offload(c);
  if (from.dp * from.cp > 1) c.add([](Layout& l) { l.zero = std::max(l.zero, 1); });
  if (from.tp > 1) c.add([](Layout& l) { l.sp = true; });
  const auto smaller_micro_batches = [&](const std::function<void(Layout&)>& change) {
    for (std::int64_t m = from.micro_batch / 2; m >= 1; m /= 2) {
      if (from.micro_batch % m != 0) continue;
      c.add([&](Layout& l) {
        change(l);
        l.micro_batch = m;
      });
    }
  };
  smaller_micro_batches([](Layout&) {});
  if (from.recompute == Recompute::None) {
    c.add([](Layout& l) { l.recompute = Recompute::Selective; });
  }
  c.add(recompute_all);
  smaller_micro_batches(recompute_all);
  c.add([](Layout& l) {
    recompute_all(l);
    if (l.dp * l.cp > 1) l.zero = std::max(l.zero, 1);
    l.sp = l.tp > 1;
  });
  c.add([](Layout& l) {
    recompute_all(l);
    shard_all(l);
  });
  c.add([](Layout& l) {
    recompute_all(l);
    shard_all(l);
    l.sp = l.tp > 1;
    l.micro_batch = 1;
  });
  std::vector<const char*> strategies{"zero-offload", "greedy"};
  if (from.offload.enabled) strategies = {"greedy"};
  if (has_nvme) strategies.push_back("zero-infinity-nvme");  // where the host is too small as well
  for (const char* strategy : strategies) {
    const OffloadSpec spec = *find_offload_strategy(strategy);
    c.add([&](Layout& l) { l.offload = spec; });
    c.add([&](Layout& l) {
      l.offload = spec;
      recompute_all(l);
    });
    c.add([&](Layout& l) {
      l.offload = spec;
      recompute_all(l);
      shard_all(l);
    });
    c.add([&](Layout& l) {
      l.offload = spec;
      recompute_all(l);
      shard_all(l);
      l.micro_batch = 1;
    });
  }
  return c.list();
}

/// `factor` times as many GPUs for one copy of the model: tensor parallel within a node as far as
/// the model divides, else more stages. Nothing: neither can be.
std::optional<Layout> over_more_gpus(const Scenario& scenario, const Topology& topology,
                                     std::int32_t factor) {
  const auto* model = std::get_if<Transformer>(&scenario.workload);
  Layout l = scenario.layout;
  if (model == nullptr || !l.devices.empty()) return std::nullopt;
  if (l.ranks() * factor > topology.gpus()) return std::nullopt;
  const std::int64_t tp = std::int64_t{l.tp} * factor;
  const bool divides = model->heads % tp == 0 && model->kv_heads % tp == 0 && model->ffn % tp == 0;
  if (divides && !model->has_experts() && tp <= topology.node_type(GpuId(0)).gpus) {
    l.tp *= factor;
    l.sp = true;
    return l;
  }
  if (!l.stage_layers.empty() || model->layers % (std::int64_t{l.pp} * factor * l.vpp) != 0) {
    return std::nullopt;
  }
  l.pp *= factor;
  if (l.schedule == Schedule::None) l.schedule = Schedule::OneFOneB;
  return l;
}

/// `layout` as a change, if it can be and all memory suffices.
std::optional<LayoutChange> fits(const Scenario& scenario, const Layout& layout,
                                 const HardwareModel& costs, const Topology& topology) {
  const Outcome<Plan> outcome = plan_of(scenario, layout, costs);
  const Plan* plan = std::get_if<Plan>(&outcome);
  if (plan == nullptr) return std::nullopt;
  const std::vector<RoleMemory> memory = memory_of(scenario, *plan, costs, topology);
  if (memory_shortage(*plan, memory, topology)) return std::nullopt;
  const std::vector<std::int64_t> host = host_bytes(*plan, memory, topology);
  const Bytes fullest(host.empty() ? 0 : *std::max_element(host.begin(), host.end()));
  return LayoutChange{difference(scenario.layout, layout), layout, fullest};
}

/// True if a larger micro-batch of an otherwise equal layout fits, without a pipeline whose bubble
/// smaller ones make shorter: it is hardly slower.
bool fits_with_more(std::span<const LayoutChange> fitting, const Layout& layout) {
  if (layout.pp > 1) return false;
  return std::any_of(fitting.begin(), fitting.end(), [&](const LayoutChange& change) {
    Layout same = change.layout;
    same.micro_batch = layout.micro_batch;
    return change.layout.micro_batch > layout.micro_batch && same == layout;
  });
}

std::string sentence(const LayoutChange& change) {
  if (change.host.value == 0) return change.what;
  return fmt::format("{} ({:.1f} GiB in the host memory of a node)", change.what,
                     static_cast<double>(change.host.value) / kGiB);
}

/// With the fewest more GPUs of the cluster.
std::string more_gpus(const Scenario& scenario, const HardwareModel& costs,
                      const Topology& topology) {
  const std::int32_t now = scenario.layout.ranks();
  for (std::int32_t factor = 2; now * factor <= topology.gpus(); factor *= 2) {
    std::optional<Layout> wider = over_more_gpus(scenario, topology, factor);
    for (const bool recomputes : {false, true}) {
      if (!wider) continue;
      if (recomputes) recompute_all(*wider);
      const auto change = fits(scenario, *wider, costs, topology);
      if (!change) continue;
      return fmt::format("{} GPUs instead of {}: {}", now * factor, now, sentence(*change));
    }
  }
  return "";
}

}  // namespace

Outcome<Plan> plan_of(const Scenario& scenario, const Layout& layout, const CostModel& costs) {
  return make_plan(scenario.workload, scenario.cluster, layout, scenario.job, nullptr, &costs,
                   scenario.plugins);
}

std::vector<RoleMemory> memory_of(const Scenario& scenario, const Plan& plan,
                                  const HardwareModel& costs, const Topology& topology) {
  return predict_memory(plan, costs, topology, allocator_of(scenario, costs));
}

std::vector<LayoutChange> fitting_changes(const Scenario& scenario, const HardwareModel& costs,
                                          const Topology& topology, bool all) {
  std::vector<LayoutChange> fitting;
  const bool has_nvme = topology.node_type(GpuId(0)).nvme_read.value > 0;
  for (const Layout& layout : lighter_layouts(scenario.layout, has_nvme)) {
    if (fits_with_more(fitting, layout)) continue;
    auto change = fits(scenario, layout, costs, topology);
    if (!change) continue;
    fitting.push_back(*std::move(change));
    if (!all) break;
  }
  return fitting;
}

std::string what_fits(const Scenario& scenario, const HardwareModel& costs,
                      const Topology& topology) {
  const std::vector<LayoutChange> fitting = fitting_changes(scenario, costs, topology, false);
  const std::string more = more_gpus(scenario, costs, topology);
  if (!fitting.empty()) return sentence(fitting.front()) + (more.empty() ? "" : "; or " + more);
  const std::string none =
      "no change of recompute, zero, sp, micro_batch or offload fits on these GPUs";
  if (!more.empty()) return none + "; " + more;
  return none + fmt::format(
                    " and no more of the {} GPUs of the cluster help: take a larger cluster and "
                    "cut the model over it (layout.tp, layout.pp), or hosts of more memory",
                    topology.gpus());
}

std::optional<LayoutChange> legal_change(const Scenario& scenario, const CostModel& costs) {
  const auto refused = [&](const Layout& layout) {
    const Outcome<Plan> outcome = plan_of(scenario, layout, costs);
    const auto* infeasible = std::get_if<Infeasible>(&outcome);
    return infeasible != nullptr && !infeasible->short_by;
  };
  const Layout& from = scenario.layout;
  if (!refused(from)) return std::nullopt;
  Candidates c(from);
  c.add([](Layout& l) { l.sp = !l.sp; });
  c.add([](Layout& l) { l.tp_overlap = TpOverlap::None; });
  c.add([](Layout& l) { l.zero = std::min(l.zero, 1); });
  c.add([](Layout& l) { l.zero = 0; });
  c.add([](Layout& l) { l.schedule = l.pp > 1 ? Schedule::OneFOneB : Schedule::None; });
  c.add([](Layout& l) { l.offload.delayed_update = false; });
  c.add([](Layout& l) { l.offload = {}; });
  for (const Layout& layout : c.list()) {
    if (!refused(layout)) return LayoutChange{difference(from, layout), layout, {}};
  }
  return std::nullopt;
}

std::optional<LayoutChange> cheapest_fit(const Scenario& scenario, const HardwareModel& costs,
                                         const Topology& topology) {
  std::optional<LayoutChange> best;
  Ps least = 0;
  for (LayoutChange& change : fitting_changes(scenario, costs, topology, true)) {
    Outcome<Plan> outcome = plan_of(scenario, change.layout, costs);
    const ExecutionOutcome executed =
        SimgridExecutor().run(std::get<Plan>(outcome), costs, topology, RunOptions{}, nullptr);
    const auto* execution = std::get_if<Execution>(&executed);
    if (execution == nullptr || (best && execution->iteration >= least)) continue;
    least = execution->iteration;
    best = std::move(change);
  }
  return best;
}

}  // namespace gputwin
