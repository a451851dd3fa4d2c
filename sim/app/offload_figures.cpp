#include "sim/app/offload_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "strategies/offload/allocation.h"

namespace gputwin {
namespace {

struct Traffic {
  std::int64_t in = 0, out = 0;
  double in_s = 0, out_s = 0, host_s = 0;
};

Traffic traffic_of(const Plan& plan, const Program& program, const Rank& rank,
                   const CostModel& costs, const Topology& topology) {
  Traffic t;
  for (const Instruction& i : program.body) {
    if (i.kind != Kind::Copy && i.kind != Kind::HostTask) continue;
    const Call& call = plan.calls[i.call];
    const Bytes bytes = bytes_of(call.reads);
    if (i.kind == Kind::HostTask) {
      t.host_s +=
          costs.kernel(call.op, bytes, bytes_of(call.writes), topology.device_kind(rank.gpu))
              .time.value;
      continue;
    }
    const double seconds = costs.copy(call.op.copy, bytes, call.op.pinned, rank.gpu).time.value;
    if (call.op.copy == CopyKind::HostToDevice) {
      t.in += bytes.value;
      t.in_s += seconds;
    } else if (call.op.copy == CopyKind::DeviceToHost) {
      t.out += bytes.value;
      t.out_s += seconds;
    }
  }
  return t;
}

std::string colour(MemoryClass memory) {
  constexpr std::array<const char*, kMemoryClasses> kColours{
      "#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb", "#66ccee", "#aa3377"};
  return kColours.at(static_cast<std::size_t>(memory));
}

std::set<std::string> tasks_of_offload(const Plan& plan) {
  std::set<std::string> names;
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program.body) {
      if (i.kind == Kind::Copy || i.kind == Kind::HostTask) names.insert(plan.names[i.name].op);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> unmoved_lines(const Plan& plan, const OffloadSpec& spec) {
  std::vector<std::string> lines;
  if (!spec.enabled) return lines;
  const std::set<std::string> tasks = tasks_of_offload(plan);
  if (tasks.empty() && (spec.params_auto || spec.optimizer_share < 0)) {
    return {"offload moves nothing: all fits on the GPU"};
  }
  if (spec.activations != OffloadPlace::Gpu && !tasks.contains("activation_out")) {
    lines.emplace_back(
        "offload moves no activations: none that the backward pass only reads is away for longer "
        "than its two copies take");
  }
  const bool steps = tasks.contains("cpu_adam") || tasks.contains("state_in");
  if (spec.optimizer != OffloadPlace::Gpu && spec.optimizer_share >= 0 && !steps) {
    lines.push_back(
        fmt::format("offload moves no states of the optimizer: a share of {:g} holds no bucket",
                    spec.optimizer_share));
  }
  if (spec.params != OffloadPlace::Gpu && !spec.params_auto && !tasks.contains("weight_in")) {
    lines.emplace_back("offload moves no weights: none lie in buckets of ordinary size");
  }
  return lines;
}

std::vector<OffloadFigures> offload_figures(const Plan& plan, const Execution& execution,
                                            const CostModel& costs, const Topology& topology) {
  std::vector<OffloadFigures> figures;
  std::vector<char> done(plan.programs.size(), 0);
  const double seconds = to_seconds(execution.iteration).value;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const Rank& rank = plan.ranks[r];
    if (done[rank.program.value]++ != 0) continue;
    const Program& program = plan.programs[rank.program.value];
    const Traffic t = traffic_of(plan, program, rank, costs, topology);
    if (t.in + t.out == 0 && t.host_s == 0) continue;
    const Ps stall = execution.breakdown[r][static_cast<std::size_t>(Part::CopyStall)];
    figures.push_back({.role = program.name,
                       .to_gpu = Bytes(t.in),
                       .from_gpu = Bytes(t.out),
                       .in_busy = seconds > 0 ? t.in_s / seconds : 0,
                       .out_busy = seconds > 0 ? t.out_s / seconds : 0,
                       .host_optimizer = Seconds(t.host_s),
                       .stall = to_seconds(stall)});
  }
  return figures;
}

std::vector<std::string> offload_lines(const std::vector<OffloadFigures>& figures, Ps iteration) {
  constexpr double kGiB = 1 << 30;
  const double seconds = to_seconds(iteration).value;
  std::vector<std::string> lines;
  for (const OffloadFigures& f : figures) {
    lines.push_back(fmt::format(
        "offload of {}: {:.1f} GiB to the GPU ({:.0f} % of its own link's time), {:.1f} GiB from "
        "it ({:.0f} %), host optimizer {:.3g} s, copies stall {:.3g} s ({:.1f} %)",
        f.role, static_cast<double>(f.to_gpu.value) / kGiB, 100 * f.in_busy,
        static_cast<double>(f.from_gpu.value) / kGiB, 100 * f.out_busy, f.host_optimizer.value,
        f.stall.value, 100 * f.stall.value / seconds));
  }
  return lines;
}

AddressMap address_map(const Plan& plan, const Program& program) {
  const BufferLifetimes live = buffer_lifetimes(plan, program, ArenaId(0));
  constexpr std::int64_t kAlignment = 512;
  const Addresses placed = greedy_by_size(live.lifetimes, Fit::First, kAlignment);
  AddressMap map{
      .live_bytes = lower_bound_bytes(live.lifetimes), .placed_bytes = placed.bytes, .svg = {}};
  constexpr double kWidth = 1200, kHeight = 600;
  const double x = kWidth / std::max<double>(1, static_cast<double>(program.body.size()));
  const double y = kHeight / std::max<double>(1, static_cast<double>(placed.bytes));
  map.svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\">\n<title>GPU memory of {} "
      "by "
      "address, over the instructions of one iteration</title>\n",
      kWidth, kHeight, program.name);
  for (std::size_t i = 0; i < live.lifetimes.size(); ++i) {
    const Lifetime& l = live.lifetimes[i];
    const Buffer& b = plan.buffers[live.buffers[i].value];
    const auto top = static_cast<double>(placed.offsets[i] + l.bytes);
    map.svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
        "stroke=\"#ffffff\" stroke-width=\"0.2\"><title>{} at {}, {} bytes</title></rect>\n",
        x * static_cast<double>(l.begin), kHeight - y * top,
        x * static_cast<double>(l.end - l.begin), y * static_cast<double>(l.bytes),
        colour(b.memory), b.name, placed.offsets[i], l.bytes);
  }
  map.svg += "</svg>\n";
  return map;
}

}  // namespace gputwin
