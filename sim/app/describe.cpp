#include "sim/app/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hwmodels/flops.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace {

std::string job_line(const Scenario& s) {
  const auto* model = std::get_if<Transformer>(&s.workload);
  const std::string name =
      model != nullptr
          ? fmt::format("{} ({:.4g} B parameters)", model->name,
                        static_cast<double>(model->parameters()) / 1e9)
          : fmt::format("{} ({:.4g} M parameters)", std::get<LayerGraph>(s.workload).name,
                        static_cast<double>(std::get<LayerGraph>(s.workload).parameters()) / 1e6);
  return fmt::format("{}, sequence {}, global batch {}, {}, {} attention, {}", name,
                     grouped(s.job.sequence), grouped(s.job.global_batch),
                     to_string(s.job.precision.compute), to_string(s.job.attention), s.job.stack);
}

std::string cluster_line(const Cluster& c) {
  std::string text = c.name + ": ";
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    const NodeGroup& group = c.groups[g];
    text += fmt::format("{}{} x {} {}", g == 0 ? "" : " + ", group.count, group.type.gpus,
                        group.type.device);
  }
  if (c.nodes() > 1) text += fmt::format(", {}", to_string(c.fabric.kind));
  return text;
}

std::string layout_line(const Layout& l) {
  std::string text = fmt::format("tp {}{}, pp {}", l.tp, l.sp ? " with sp" : "", l.pp);
  if (l.vpp > 1) text += fmt::format(" x {} chunks", l.vpp);
  if (l.ep > 1 && l.ep_comm != ExpertComm::Flat) {
    text += fmt::format(", ep exchange {}", to_string(l.ep_comm));
  }
  if (l.cp > 1) text += fmt::format(", cp {} by {}", l.cp, to_string(l.cp_comm));
  if (l.stage_replicas.empty()) {
    text += fmt::format(", dp {}", l.dp);
  } else {
    text += fmt::format(", replicas {}", fmt::join(l.stage_replicas, "-"));
  }
  if (l.zero > 0) {
    text += fmt::format(" (zero {}", l.zero);
    text += l.hsdp_group > 0 ? fmt::format(" in groups of {})", l.hsdp_group) : ")";
  }
  if (l.pp > 1) text += fmt::format(", {}", to_string(l.schedule));
  return text +
         fmt::format(", micro-batch {}, recompute {}", l.micro_batch, to_string(l.recompute));
}

}  // namespace

ReportContext describe(const Scenario& s) {
  ReportContext context;
  context.job = job_line(s);
  context.cluster = cluster_line(s.cluster);
  context.layout = layout_line(s.layout);
  context.flops_convention = std::holds_alternative<LayerGraph>(s.workload)
                                 ? graph_flops_text()
                                 : flops_convention_text(FlopsConvention::Causal);
  context.gpus = s.layout.ranks();
  return context;
}

}  // namespace gputwin
