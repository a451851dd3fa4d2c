#include "strategies/search/offload_costs.h"

#include <algorithm>

namespace gputwin {
namespace {

constexpr double kSlots = 3;  // one in use, one on its way in, one on its way out

double stage_parameters(const Probed& probed, const Layout& l) {
  return static_cast<double>(probed.model.parameters()) / l.tp / l.pp;
}

Seconds copy_time(CopyKind kind, double bytes, const Layout& l, Prices& prices) {
  const Bytes whole(static_cast<std::int64_t>(std::max(bytes, 0.0)));
  const GpuId gpu(0);
  const double alone = prices.costs().copy(kind, whole, l.offload.pinned, gpu).time.value;
  const PcieTree& pcie = prices.topology().node_type(gpu).pcie;
  const double uplink = pcie.switch_uplink.value * pcie.efficiency / pcie.gpus_per_switch;
  return Seconds(std::max(alone, uplink > 0 && l.ranks() > 1 ? bytes / uplink : 0.0));
}

Seconds host_step(double elements, const Layout& l, Prices& prices) {
  const std::int64_t ranks =
      std::min<std::int64_t>(l.ranks(), prices.topology().node_type(GpuId(0)).gpus);
  const Op op{.kind = OpKind::CpuAdam, .dims = {static_cast<std::int64_t>(elements), ranks}};
  return prices.kernel(op, Bytes(0), Bytes(0), DeviceKindId(0));
}

double master_bytes(const Job& job) {
  return job.precision.master && bits(job.precision.params) < 32 ? 4 : 0;
}

}  // namespace

ParameterBytes parameter_bytes(const Job& job, const Layout& l, std::int32_t shards) {
  const Precision& p = job.precision;
  const auto share = [&](int level) { return l.zero >= level ? double(shards) : 1.0; };
  const double moments = job.optimizer == Optimizer::Sgd ? 1 : 2;
  const double moment = p.master ? 4 : bits(p.params) / 8.0;
  const double master = master_bytes(job);
  return {.weight = bits(p.params) / 8.0 / share(3),
          .gradient = bits(p.grads) / 8.0 / share(2),
          .states = (moments * moment + master) / share(1)};
}

ParameterBytes leaving_bytes(const Job& job, const Layout& l, std::int32_t shards) {
  ParameterBytes b = parameter_bytes(job, l, shards);
  const OffloadSpec& s = l.offload;
  if (!s.enabled || s.params == OffloadPlace::Gpu) b.weight = 0;
  if (!s.enabled || s.gradients == OffloadPlace::Gpu) b.gradient = 0;
  const double share = s.optimizer_share < 0 ? 1 : s.optimizer_share;
  if (s.masters_on_gpu) b.states -= master_bytes(job) / (l.zero >= 1 ? double(shards) : 1.0);
  b.states *= s.enabled && s.optimizer != OffloadPlace::Gpu ? share : 0;
  return b;
}

GridCosts offloaded(const Probed& probed, const Layout& l, GridCosts grid, Prices& prices) {
  const double each = parameter_bytes(probed.job, l, l.shards()).all();
  const ParameterBytes gone = leaving_bytes(probed.job, l, l.shards());
  const double layers =
      std::max(1.0, static_cast<double>(probed.model.layers) / static_cast<double>(l.pp));
  for (StageCosts& stage : grid.stages) {
    const double parameters = stage.persistent / each;
    const double stay = (gone.weight + gone.gradient) * parameters * std::min(1.0, kSlots / layers);
    stage.persistent += stay - parameters * gone.all();
    if (gone.states <= 0) continue;
    const double stepped = parameters * l.offload.optimizer_share /
                           (l.zero >= 1 ? static_cast<double>(l.shards()) : 1.0);
    const double bytes = l.offload.masters_on_gpu ? 4 : bits(probed.job.precision.params) / 8.0;
    const double weights = stepped * bytes;
    stage.step = 0;
    stage.finish = std::max(host_step(stepped, l, prices),
                            copy_time(CopyKind::HostToDevice, weights, l, prices))
                       .value;
  }
  return grid;
}

Seconds copies(const Probed& probed, const Layout& l, double short_by, Prices& prices) {
  const ParameterBytes gone = leaving_bytes(probed.job, l, l.shards());
  const double parameters = stage_parameters(probed, l);
  const auto m = static_cast<double>(probed.job.global_batch / (l.micro_batch * l.dp));
  const double weights = std::min(gone.weight * parameters,
                                  l.offload.params_auto ? short_by : gone.weight * parameters);
  const double in = m * 2 * weights + (m - 1) * gone.gradient * parameters;
  const double out = m * gone.gradient * parameters;
  return copy_time(CopyKind::HostToDevice, std::max(in, out), l, prices);
}

}  // namespace gputwin
