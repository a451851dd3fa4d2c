#include "strategies/search/methods.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>

#include "strategies/search/layout_costs.h"

namespace gputwin {
namespace {

constexpr std::array kMethods{
    Method{"data-parallel", "replicas alone"},
    Method{"fsdp", "replicas that share weights, gradients and states (ZeRO 3)"},
    Method{"tensor-in-node", "tensor parallelism over the GPUs of a node, replicas beyond"},
    Method{"gpipe", "even stages and replicas, all forward passes first (Huang et al. 2019)"},
    Method{"1f1b", "even stages and replicas, one forward one backward (Narayanan et al. 2019)"},
    Method{"megatron",
           "least model parallelism that fits, tensor parallelism up to a node before stages, the "
           "best micro-batch and chunks (Narayanan et al. 2021, takeaways 1 to 3)"},
    Method{"amp", "the least estimate of AMP's cost model, even stages (Li et al. 2022)"},
    Method{"alpa", "degrees and stages by dynamic programme, 1F1B (Zheng et al. 2022)"},
    Method{"galvatron",
           "degrees, sharding, and by layer whether it is recomputed (Miao et al. 2022)"}};

std::int32_t gpus_of_node(const Cluster& cluster) {
  std::int32_t least = cluster.groups.front().type.gpus;
  for (const NodeGroup& g : cluster.groups) least = std::min(least, g.type.gpus);
  return least;
}

bool one_chunk_a_stage(const Layout& l) {
  return l.vpp == 1 && (l.pp == 1 || l.schedule == Schedule::OneFOneB);
}

bool even(const Layout& l) { return l.stage_layers.empty() && l.recompute != Recompute::Block; }

// The layouts that a method can express.
bool expresses(const std::string& method, const Layout& l, std::int32_t node) {
  const bool replicas = l.tp == 1 && l.cp == 1 && l.ep == 1;
  if (method == "data-parallel") return replicas && l.pp == 1 && l.zero <= 1 && even(l);
  if (method == "fsdp") return replicas && l.pp == 1 && l.zero == 3 && even(l);
  if (l.cp > 1) return false;
  if (method == "galvatron") return one_chunk_a_stage(l) && l.stage_layers.empty();
  if (method == "alpa")
    return one_chunk_a_stage(l) && l.zero <= 1 && l.recompute != Recompute::Block;
  if (!even(l) || l.zero > 1) return false;
  if (method == "tensor-in-node") return l.tp == node && l.pp == 1;
  if (method == "gpipe") return replicas && l.pp > 1 && l.schedule == Schedule::Gpipe;
  if (method == "1f1b") return replicas && l.pp > 1 && one_chunk_a_stage(l);
  if (method == "amp") return one_chunk_a_stage(l);
  if (method == "megatron") {
    return l.tp <= node && (l.pp == 1 || l.tp == node) && l.schedule != Schedule::Gpipe;
  }
  throw std::invalid_argument("no method " + method);
}

// Bytes per second between ranks of one node, or of several, each direction of one GPU.
double rate(const NodeType& type, bool in_node) {
  if (!in_node) {
    return type.nics.each.value * type.nics.efficiency * type.nics.per_node / type.gpus;
  }
  return type.intra.kind == IntraKind::Pcie ? type.pcie.per_gpu.value * type.pcie.efficiency
                                            : type.intra.per_gpu.value * type.intra.efficiency;
}

}  // namespace

std::span<const Method> methods() { return kMethods; }

double amp_seconds(const Layout& l, const MethodWorld& world) {
  const NodeType& node = world.cluster.groups.front().type;
  const std::vector<std::int32_t> layers = l.layers_per_chunk(world.model.layers);
  const std::vector<std::int32_t> dense = dense_layers(world.model, layers);
  const auto micro_batches = static_cast<double>(world.job.global_batch / (l.micro_batch * l.dp));
  const ChunkTable& table = world.estimator.table(l, DeviceKindId(0));
  const bool one_node = l.ranks() <= node.gpus;
  double sum = 0, most = 0, reduction = 0, message = 0;
  for (std::int32_t s = 0; s < l.pp; ++s) {
    const auto i = static_cast<std::size_t>(s);
    const ChunkFigures f = table.of(kind_of_stage(l, s), layers[i], dense[i]);
    sum += f.forward + f.backward;
    most = std::max(most, f.forward + f.backward);
    if (l.dp == 1) continue;
    const double gradients = f.elements * bits(world.job.precision.grads) / 8.0;
    const double link = rate(node, one_node || l.tp * l.dp <= node.gpus);
    reduction = std::max(reduction, 2.0 * (l.dp - 1) / l.dp * gradients / link);
  }
  if (l.pp > 1) {
    const double link = rate(node, one_node || 2 * l.tp * l.dp <= node.gpus);
    message = static_cast<double>(table.message.value) / link;
  }
  return sum + 2 * (l.pp - 1) * message + (micro_batches - 1) * most + reduction;
}

std::optional<std::size_t> choose(const std::string& method, std::span<const Layout* const> layouts,
                                  const MethodWorld& world) {
  const std::int32_t node = gpus_of_node(world.cluster);
  std::optional<std::size_t> best;
  std::tuple<double, double> least{};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout& l = *layouts[i];
    if (!expresses(method, l, node)) continue;
    std::tuple<double, double> key{0, static_cast<double>(i)};
    if (method == "megatron") std::get<0>(key) = l.tp * l.pp;
    if (method == "amp") std::get<0>(key) = amp_seconds(l, world);
    if (best && key >= least) continue;
    best = i;
    least = key;
  }
  return best;
}

std::optional<Layout> recomputed_as_needed(Layout layout, const Transformer& model,
                                           LayoutEstimator& estimator) {
  const std::vector<std::int32_t> layers = layout.layers_per_chunk(model.layers);
  const std::int32_t most = *std::max_element(layers.begin(), layers.end());
  layout.recompute = Recompute::Block;
  layout.recompute_layers.assign(static_cast<std::size_t>(layout.pp), 0);
  for (;;) {
    const Outcome<Estimate> outcome = estimator.estimate(layout);
    const auto* e = std::get_if<Estimate>(&outcome);
    if (e == nullptr) return {};
    if (e->fits()) break;
    std::int32_t& again = layout.recompute_layers[static_cast<std::size_t>(e->stage)];
    if (again == most) return {};
    ++again;
  }
  const bool none = std::all_of(layout.recompute_layers.begin(), layout.recompute_layers.end(),
                                [](std::int32_t n) { return n == 0; });
  if (none) return {};
  return layout;
}

}  // namespace gputwin
