#include "sim/app/result_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/core/spelling.h"
#include "sim/trace/atomic_file.h"

namespace gputwin {

namespace {

using Json = nlohmann::ordered_json;

double seconds(Ps time) { return to_seconds(time).value; }

/// Key of a part within breakdown_s.
const char* key(Part part) {
  switch (part) {
    case Part::Compute: return "compute";
    case Part::ExposedTp: return "exposed_tp";
    case Part::ExposedDp: return "exposed_dp";
    case Part::ExposedPp: return "exposed_pp";
    case Part::ExposedEp: return "exposed_ep";
    case Part::ExposedCp: return "exposed_cp";
    case Part::CopyStall: return "copy_stall";
    case Part::Bubble: return "bubble";
    case Part::Optimizer: return "optimizer";
    case Part::Host: return "host";
  }
  return "";
}

Json breakdown(const Execution& run) {
  Json parts = Json::object();
  const std::uint32_t rank = run.last_rank.value;
  for (std::size_t p = 0; p < kParts; ++p) {
    const Ps time = rank < run.breakdown.size() ? run.breakdown[rank][p] : 0;
    parts[key(static_cast<Part>(p))] = seconds(time);
  }
  return parts;
}

Json memory(const std::vector<RoleMemory>& roles) {
  Bytes allocated{}, reserved{}, device{};
  Json rows = Json::array();
  for (const RoleMemory& role : roles) {
    const MemoryFigures& f = role.figures;
    allocated = std::max(allocated, f.allocated);
    reserved = std::max(reserved, f.reserved);
    device = std::max(device, f.device);
    Json row;
    row["role"] = role.role;
    for (std::size_t c = 0; c < kMemoryClasses; ++c) {
      row[std::string(to_string(static_cast<MemoryClass>(c))) + "_bytes"] = f.at_peak[c].value;
    }
    row["peak_allocated_bytes"] = f.allocated.value;
    row["peak_reserved_bytes"] = f.reserved.value;
    row["peak_device_bytes"] = f.device.value;
    row["peak_host_bytes"] = f.host.value;
    row["fragmentation"] = f.fragmentation();
    row["allocator_segments"] = f.segments;
    row["allocator_retries"] = f.retries;
    row["out_of_memory"] = f.out_of_memory.empty() ? Json(nullptr) : Json(f.out_of_memory);
    row["capacity_bytes"] = role.capacity.value;
    rows.push_back(std::move(row));
  }
  return {{"peak_allocated_bytes", allocated.value},
          {"peak_reserved_bytes", reserved.value},
          {"peak_device_bytes", device.value},
          {"by_role", std::move(rows)}};
}

Json engine(const Execution& run) {
  const EngineStats& e = run.engine;
  return {{"tasks", e.tasks},
          {"instructions", e.instructions},
          {"flows", e.flows},
          {"simgrid_flows", e.simgrid_flows},
          {"ranks", run.rank_end.size()},
          {"simulated_ranks", e.simulated_ranks},
          {"bodies", e.bodies},
          {"folded", e.folded},
          {"unfolded_because", e.unfolded_because},
          {"period_converged", run.period_converged},
          {"wall_s", e.wall_s},
          {"peak_rss_bytes", e.peak_rss_bytes}};
}

Json coded_classes(const std::vector<CodedClass>& classes) {
  Json list = Json::array();
  for (const CodedClass& c : classes) {
    list.push_back({{"tensors", c.tensors},
                    {"codec", c.codec},
                    {"blocking_bytes", c.blocking_bytes.value},
                    {"bytes", c.bytes.value}});
    if (c.expected_error) list.back()["expected_error"] = *c.expected_error;
  }
  return list;
}

Json passes(const PassFigures& f, Ps iteration) {
  const std::string unit = f.sequence_chunks ? "tokens" : "samples";
  return {{"forward_chunks_" + unit, f.forward_chunks},
          {"backward_chunks_" + unit, f.backward_chunks},
          {"forward_codec", f.forward_codec},
          {"backward_codec", f.backward_codec},
          {"expected_error", f.expected_error},
          {"classes", coded_classes(f.classes)},
          {"blocking_iteration_s", seconds(f.blocking_iteration)},
          {"speed_up", seconds(f.blocking_iteration) / seconds(iteration)},
          {"blocking_exposed_tp_s", seconds(f.blocking_exposed)},
          {"exposed_tp_s", seconds(f.exposed)},
          {"blocking_exposed_dp_s", seconds(f.blocking_exposed_dp)},
          {"exposed_dp_s", seconds(f.exposed_dp)},
          {"blocking_exposed_pp_s", seconds(f.blocking_exposed_pp)},
          {"exposed_pp_s", seconds(f.exposed_pp)},
          {"blocking_tp_bytes", f.blocking_bytes.value},
          {"tp_bytes", f.bytes.value},
          {"gain_bound", f.gain_bound},
          {"verdict", f.verdict}};
}

Json offload(const std::vector<OffloadFigures>& figures) {
  Json list = Json::array();
  for (const OffloadFigures& f : figures) {
    list.push_back({{"role", f.role},
                    {"bytes_to_gpu", f.to_gpu.value},
                    {"bytes_from_gpu", f.from_gpu.value},
                    {"link_in_busy", f.in_busy},
                    {"link_out_busy", f.out_busy},
                    {"host_optimizer_s", f.host_optimizer.value},
                    {"stall_s", f.stall.value}});
  }
  return list;
}

}  // namespace

std::string result_json(const RunResult& result, const std::string& flops_convention) {
  const Execution& run = result.execution;
  Json out;
  out["schema"] = kResultSchema;
  out["scenario"] = result.scenario;
  out["iteration_time_s"] = seconds(run.iteration);
  out["interval_s"] = {result.low.value, result.high.value};
  out["makespan_s"] = seconds(run.makespan);
  out["tokens_per_s"] = result.tokens_per_s;
  out["samples_per_s"] = result.samples_per_s;
  out["model_tflops_per_gpu"] = result.model_tflops_per_gpu;
  out["hardware_tflops_per_gpu"] = result.hardware_tflops_per_gpu;
  out["flops_convention"] = flops_convention;
  out["mfu"] = result.mfu;
  out["hfu"] = result.hfu;
  out["breakdown_s"] = breakdown(run);
  out["breakdown_rank"] = run.last_rank.valid() ? Json(run.last_rank.value) : Json(nullptr);
  out["memory"] = memory(result.memory);
  if (result.passes) out["passes"] = passes(*result.passes, run.iteration);
  if (!result.offload.empty()) out["offload"] = offload(result.offload);
  out["extrapolated"] = result.extrapolated;
  out["warnings"] = result.warnings;
  out["engine"] = engine(run);
  return out.dump(2) + "\n";
}

void write_result_json(const std::filesystem::path& path, const RunResult& result,
                       const std::string& flops_convention) {
  write_file(path, result_json(result, flops_convention));
}

}  // namespace gputwin
