#include "strategies/search/offload_costs.h"

#include <algorithm>

namespace gputwin {
namespace {

constexpr double kSlots = 3;  // one in use, one on its way in, one on its way out
constexpr int kParts = 16;    // shares of the states that a strategy chooses among

double layers_of_stage(const Probed& probed, const Layout& l) {
  return std::max(1.0, static_cast<double>(probed.model.layers) / static_cast<double>(l.pp));
}

double micro_batches(const Probed& probed, const Layout& l) {
  return static_cast<double>(probed.job.global_batch / (l.micro_batch * l.dp));
}

double copy_time(CopyKind kind, double bytes, const Layout& l, Prices& prices) {
  if (bytes <= 0) return 0;
  const GpuId gpu(0);
  const Bytes whole(static_cast<std::int64_t>(bytes));
  const double alone = prices.costs().copy(kind, whole, l.offload.pinned, gpu).time.value;
  const PcieTree& pcie = prices.topology().node_type(gpu).pcie;
  const double uplink = pcie.switch_uplink.value * pcie.efficiency / pcie.gpus_per_switch;
  return std::max(alone, uplink > 0 && l.ranks() > 1 ? bytes / uplink : 0.0);
}

double host_step(double elements, const Layout& l, Prices& prices) {
  const std::int64_t ranks =
      std::min<std::int64_t>(l.ranks(), prices.topology().node_type(GpuId(0)).gpus);
  const Op op{.kind = OpKind::CpuAdam, .dims = {static_cast<std::int64_t>(elements), ranks}};
  return prices.kernel(op, Bytes(0), Bytes(0), DeviceKindId(0)).value;
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
  if (s.masters_on_gpu) b.states -= master_bytes(job) / (l.zero >= 1 ? double(shards) : 1.0);
  if (!s.enabled || s.optimizer == OffloadPlace::Gpu) b.states = 0;
  return b;
}

std::vector<Absent> choices(const Probed& probed, const Layout& l, double parameters, double over) {
  const OffloadSpec& s = l.offload;
  const ParameterBytes bytes = leaving_bytes(probed.job, l, l.shards());
  const double weight = bytes.weight * parameters, gradient = bytes.gradient * parameters;
  const double states = bytes.states * parameters;
  const double layers = layers_of_stage(probed, l), most = 1 - std::min(1.0, kSlots / layers);
  const auto needed = [&](double short_by, double of) {
    return of > 0 ? std::clamp(short_by / of, 0.0, most) : 0.0;
  };
  // Slots of weights take what memory is left, and only then those of gradients, which come back
  // only for further micro-batches.
  const bool once = micro_batches(probed, l) <= 1;
  const auto with_states = [&](double share, bool weights_leave) {
    Absent a{.states = share};
    const double left = over - share * states;
    if (weights_leave) {
      a.weights = needed(left - most * gradient, weight);
      if (s.slots > 0) {
        const double held = static_cast<double>(s.slots) / layers;
        a.weights = std::max(a.weights, 1 - std::min(1.0, held));
      }
    }
    a.gradients = once ? most : needed(left - a.weights * weight, gradient);
    return a;
  };
  if (s.optimizer_share >= 0) {
    const double whole = std::min(1.0, static_cast<double>(s.window) / layers);
    return {with_states(std::min(s.optimizer_share, 1 - whole), weight > 0)};
  }
  std::vector<Absent> all;
  for (int part = 0; part <= kParts; ++part) {
    const double share = static_cast<double>(part) / kParts;
    const bool fits = over <= share * states;
    if (fits) all.push_back({.states = share});  // gradients stay
    // A host that waits for the norm gains nothing where all fits.
    if (fits && part == 0 && s.clip_by_norm) return all;
    if (part > 0 && !fits && over <= share * states + most * gradient) {
      all.push_back(with_states(share, false));
    }
  }
  all.push_back(with_states(1, true));
  return all;
}

GridCosts offloaded(const Probed& probed, const Layout& l, GridCosts grid, const Absent& absent,
                    Prices& prices) {
  const OffloadSpec& s = l.offload;
  const double each = parameter_bytes(probed.job, l, l.shards()).all();
  const ParameterBytes bytes = leaving_bytes(probed.job, l, l.shards());
  const double m = micro_batches(probed, l);
  const auto in = [&](double n) { return copy_time(CopyKind::HostToDevice, n, l, prices); };
  const auto out = [&](double n) { return copy_time(CopyKind::DeviceToHost, n, l, prices); };
  for (StageCosts& stage : grid.stages) {
    const double parameters = stage.persistent / each;
    const double weights = absent.weights * bytes.weight * parameters;
    const double gradients = absent.gradients * bytes.gradient * parameters;
    stage.persistent -= weights + gradients + absent.states * bytes.states * parameters;
    // The host changed weights that have a home there: all are loaded anew once.
    const double anew = bytes.weight > 0 ? bytes.weight * parameters / m : 0;
    // What leaves for good goes down once, after the last micro-batch.
    const double down = parameter_bytes(probed.job, l, l.shards()).gradient * parameters;
    const double back = s.writes_back ? weights : 0;
    stage.forward_copies = std::max(in(std::max(weights, anew)), out(back));
    stage.backward_copies = std::max(in(weights + gradients * (m - 1) / m),
                                     out(std::max(gradients, absent.states * down / m) + back));
    stage.copies_wait = s.policy == OffloadPolicy::OnDemand || !s.overlap_copies;
    if (absent.states <= 0) continue;
    const double stepped =
        parameters * absent.states / (l.zero >= 1 ? static_cast<double>(l.shards()) : 1.0);
    if (s.step_on_gpu) {
      stage.finish += in(stepped * 12) + out(stepped * 12);
      continue;
    }
    const double back_up = s.masters_on_gpu ? 4 : bits(probed.job.precision.params) / 8.0;
    const double up = bytes.weight > 0 ? 0 : in(stepped * back_up);
    stage.step *= 1 - absent.states;
    stage.finish *= 1 - absent.states;
    stage.host = std::max(host_step(stepped, l, prices), up);
    stage.host_share = absent.states;
    stage.host_early = s.optimizer_by_bucket && !s.clip_by_norm;
  }
  return grid;
}

}  // namespace gputwin
