// Small training jobs that this computer runs for real: what probes measure and what predictions
// are held against.
#pragma once

#include <string>
#include <vector>

#include "hwmodels/hardware_model.h"
#include "sim/app/scenario.h"
#include "sim/core/error.h"
#include "sim/core/event_sink.h"
#include "validation/executors/host/host_executor.h"

namespace gputwin::probes {

/// A GPT in fp32 with unfused attention on ranks that are threads of one computer.
struct HostJob {
  std::string name;
  std::int64_t hidden = 128, heads = 4, layers = 2, vocab = 256, sequence = 64;
  std::int64_t micro_batch = 1, micro_batches = 2;
  std::int32_t tp = 1, pp = 1, dp = 1;
  std::string passes = "[]";        // JSON of the scenario's key
  double link_GBps = 1000;          // of messages, collectives and copies; 1000: as fast as memory
  std::string device = "host-cpu";  // name or file
  double pace = 1;                  // of the computer, by its yardstick

  std::int32_t ranks() const { return tp * pp * dp; }
};

Scenario host_scenario(const HostJob& job);

/// How the executor slows the links of `job`; not at all at 1000 GB/s.
executors::HostOptions host_options(const HostJob& job, int bodies);

/// A plan of `job`, with the topology and costs it was made for. Infeasible jobs are our mistake.
struct HostPlan {
  explicit HostPlan(const HostJob& job);
  HostPlan(const HostPlan&) = delete;
  HostPlan& operator=(const HostPlan&) = delete;

  Scenario scenario;
  Topology topology;
  HardwareModel costs;
  Plan plan;
};

/// What ran, in the order of ends.
struct HostRun {
  Execution execution;
  std::vector<OpEvent> events;
  std::vector<double> iterations_s;  // of the bodies that count
  double loss = 0;
};

/// Runs `plan` for real. Throws Fault, or std::runtime_error for a run that waited for ever.
HostRun run_on_host(const Plan& plan, const executors::HostOptions& options);

/// Seconds that the kernels of one job take here and now, both cores at work: how fast a computer
/// that others share is at the moment, against when it was measured (Processor::yardstick).
double yardstick_s();

/// Seconds of each call, by call id: medians over all times it ran after the first body. A
/// collective or message counts from its last member's begin to its last member's end. Events of
/// one stream are in order.
std::vector<double> call_medians(const Plan& plan, const HostRun& run);

}  // namespace gputwin::probes
