#include "validation/ops/collective_rows.h"

#include <algorithm>
#include <cctype>

#include "hwmodels/constants_file.h"
#include "hwmodels/hardware_model.h"
#include "sim/app/scenario.h"
#include "sim/core/error.h"
#include "sim/core/topology.h"

namespace gputwin {
namespace {

// "aws-ofi 1.9.2 NCCL_CROSS_NIC_1" -> "aws-ofi-1.9.2-nccl-cross-nic-1"
std::string slug(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out +=
        c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Devices whose node the AIConfigurator tables measured; "aic-" and their word is the system.
const std::map<std::string, std::string>& measured_nodes() {
  static const std::map<std::string, std::string> nodes{
      {"aic-a100-sxm", "a100-sxm-80gb"},
      {"aic-h100-sxm", "h100-sxm-80gb"},
      {"aic-h200-sxm", "h200-sxm-141gb"},
      {"aic-b200-sxm", "b200-sxm"},
      {"aic-b300-sxm", "b300-sxm"},
      {"aic-gb200", "gb200"},
      {"aic-gb300", "gb300"},
      {"aic-l40s", "l40s"},
      {"aic-rtx-pro-6000-server", "rtx-pro-6000-server"}};
  return nodes;
}

// The name in `names` that shares most with `wanted`, at least `least` characters; or nothing.
std::string nearest_prefix(const std::vector<std::string>& names, const std::string& wanted,
                           std::size_t least) {
  std::string best;
  std::size_t most = 0;
  for (const std::string& name : names) {
    const auto end = std::mismatch(name.begin(), name.end(), wanted.begin(), wanted.end());
    const auto same = static_cast<std::size_t>(end.first - name.begin());
    if (same >= least && same > most) most = same, best = name;
  }
  return best;
}

}  // namespace

OpKind collective_kind(const std::string& word) {
  static const std::map<std::string, OpKind> kinds{{"all_reduce", OpKind::AllReduce},
                                                   {"all_gather", OpKind::AllGather},
                                                   {"reduce_scatter", OpKind::ReduceScatter},
                                                   {"alltoall", OpKind::AllToAll},
                                                   {"all_to_all", OpKind::AllToAll},
                                                   {"broadcast", OpKind::Broadcast},
                                                   {"sendrecv", OpKind::SendTo},
                                                   {"send_recv", OpKind::SendTo},
                                                   {"send_to", OpKind::SendTo}};
  const auto found = kinds.find(word);
  if (found == kinds.end()) {
    throw InputError("", "collective", word, "is no known collective", "write all_reduce");
  }
  return found->second;
}

std::string curves_of(const CollectiveRow& row) {
  const std::string system = slug(row.system);
  if (const auto node = measured_nodes().find(system); node != measured_nodes().end()) {
    // NCCL 2.23 starts other protocols than 2.26 to 2.29, which agree.
    return row.version == "2.23" ? "networks/" + system + "-nccl-2.23" : "curves/" + node->second;
  }
  std::string name = system;
  // Systems that were measured with several settings.
  const bool settings = system.starts_with("alps-") || system.starts_with("snellius-") ||
                        system == "polaris-a100" || system == "juliet-ib-mlx5" ||
                        system == "olivia-gh200";
  if (settings && !row.env.empty()) name += "-" + slug(row.env);
  if (system == "polaris-a100") name += "-" + row.version.substr(0, row.version.find('.', 2));
  return "networks/" + name;
}

struct CollectivePredictor::World {
  World(const Cluster& cluster, const std::filesystem::path& data, const Adjustments& adjustments)
      : topology(cluster), model(topology, job(), data, adjustments) {}
  static Job job() {
    Job job;
    job.stack = "nccl-tests";
    return job;
  }
  Topology topology;
  HardwareModel model;
};

CollectivePredictor::CollectivePredictor(std::filesystem::path data, std::filesystem::path systems)
    : data_(std::move(data)), systems_(std::move(systems)) {}
CollectivePredictor::~CollectivePredictor() = default;

CollectivePredictor::World& CollectivePredictor::world_of(const CollectiveRow& row) {
  const std::string system = slug(row.system);
  const std::string curves = curves_of(row);
  std::unique_ptr<World>& world = worlds_[system + "/" + std::to_string(row.nodes) + "/" + curves];
  if (world) return *world;
  Cluster cluster = load_cluster(system, {systems_});
  cluster.groups.front().count = row.nodes;
  Adjustments adjustments;
  const std::filesystem::path folder = data_ / "collectives" / "networks";
  if (curves.starts_with("networks/")) {
    const std::string name =
        nearest_prefix(list_json_names(folder), curves.substr(9), system.size());
    if (!name.empty()) adjustments.network = load_collective_curves(folder / (name + ".json"));
  }
  world = std::make_unique<World>(cluster, data_, adjustments);
  return *world;
}

std::variant<Cost, std::string> CollectivePredictor::predict(const CollectiveRow& row) {
  if (!std::filesystem::exists(systems_ / "clusters" / (slug(row.system) + ".json"))) {
    return "no cluster file for system " + row.system;
  }
  World& world = world_of(row);
  const OpKind kind = collective_kind(row.collective);
  const std::int32_t per_node = world.topology.gpus() / std::max(1, row.nodes);
  const std::int32_t used = row.nodes > 0 ? row.ranks / row.nodes : 0;
  if (used < 1 || used > per_node) return std::string("ranks do not fit the nodes");
  std::vector<GpuId> members;
  for (std::int32_t r = 0; r < row.ranks; ++r) {
    const std::int32_t node = std::min(r / used, row.nodes - 1);
    members.emplace_back(static_cast<std::uint32_t>(node * per_node + (r - node * used)));
  }
  // nccl-tests' sendrecv passes on to the next rank: the slowest pair counts.
  if (kind == OpKind::SendTo) members = {members[0], row.nodes > 1 ? members.back() : members[1]};
  try {
    const CollectiveSchedule schedule =
        world.model.collective(kind, Bytes(static_cast<std::int64_t>(row.bytes)), members);
    Cost cost;
    cost.time = closed_form(schedule, members, world.topology);
    cost.terms[static_cast<std::size_t>(Term::Latency)] = schedule.latency;
    cost.terms[static_cast<std::size_t>(Term::Bandwidth)] = cost.time - schedule.latency;
    cost.low = schedule.low, cost.high = schedule.high;
    cost.extrapolated = schedule.extrapolated;
    cost.model = schedule.model;
    cost.op_class = "collective";
    return cost;
  } catch (const InputError& e) {
    return std::string(e.what());
  }
}

}  // namespace gputwin
