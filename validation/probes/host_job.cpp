#include "validation/probes/host_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "sim/app/data_directory.h"
#include "sim/app/run.h"
#include "sim/core/median.h"

namespace gputwin::probes {

namespace {

constexpr double kUnslowed = 1000.0;

class Recorder final : public EventSink {
 public:
  explicit Recorder(std::vector<OpEvent>& events) : events_(events) {}
  void op(const OpEvent& event) override { events_.push_back(event); }
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return true; }

 private:
  std::vector<OpEvent>& events_;
};

std::string scenario_text(const HostJob& job) {
  return fmt::format(
      R"({{"schema":1,"name":"{}","model":{{"name":"gpt","layers":{},"hidden":{},"heads":{},
"ffn":{},"vocab":{},"max_positions":{},"activation":"gelu","positions":"learned","norm":"layernorm",
"bias":true,"tied_embeddings":false,"dropout":0}},
"cluster":{{"name":"host","groups":[{{"type":{{"device":"{}","gpus":{},"intra":{{"kind":"pcie"}},
"pcie":{{"generation":4,"bandwidth_GBps":{},"switch_uplink_GBps":{},"gpus_per_switch":1,
"efficiency":1}},
"host":{{"sockets":1,"cores":2,"memory_GiB":16,"dram_GBps":4000}}}},"count":1}}],
"fabric":{{"kind":"none"}}}},
"job":{{"sequence":{},"global_batch":{},"precision":{{"compute":"fp32","params":"fp32",
"grads":"fp32"}},"optimizer":"adam","attention":"unfused","stack":"megatron-core"}},
"layout":{{"tp":{},"pp":{},"dp":{},"schedule":"{}","micro_batch":{}}},"passes":{}}})",
      job.name, job.layers, job.hidden, job.heads, 4 * job.hidden, job.vocab, job.sequence,
      job.device, job.ranks(), job.link_GBps, job.link_GBps, job.sequence,
      job.micro_batch * job.micro_batches * job.dp, job.tp, job.pp, job.dp,
      job.pp > 1 ? "1f1b" : "none", job.micro_batch, job.passes);
}

std::vector<std::filesystem::path> data_dirs() { return {data_directory() / "scenarios"}; }

Plan plan_of(const Scenario& scenario, const HardwareModel& costs, const Topology& topology) {
  Outcome<PreparedRun> outcome = prepare(scenario, costs, topology);
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome)) {
    throw std::runtime_error(scenario.name + ": " + infeasible->reason);
  }
  return std::move(std::get<PreparedRun>(outcome).plan);
}

}  // namespace

Scenario host_scenario(const HostJob& job) {
  return parse_scenario(scenario_text(job), job.name, {}, data_dirs());
}

executors::HostOptions host_options(const HostJob& job, int bodies) {
  executors::HostOptions options;
  options.bodies = bodies;
  if (job.link_GBps >= kUnslowed) return options;
  const BytesPerSecond rate(job.link_GBps * 1e9);
  options.collectives.rate = options.messages.rate = options.copies.rate = rate;
  return options;
}

HostPlan::HostPlan(const HostJob& job)
    : scenario(host_scenario(job)),
      topology(scenario.cluster),
      costs(topology, scenario.job, data_directory() / "hwmodels",
            {.among_copies = scenario.layout.offload.enabled, .processor_pace = job.pace}),
      plan(plan_of(scenario, costs, topology)) {}

HostRun run_on_host(const Plan& plan, const executors::HostOptions& options) {
  executors::HostExecutor executor(options);
  HostRun run;
  Recorder recorder(run.events);
  ExecutionOutcome outcome = executor.run(plan, &recorder);
  if (const auto* deadlock = std::get_if<Deadlock>(&outcome)) {
    throw std::runtime_error(fmt::format("{} ranks wait for ever, first on {}", deadlock->total,
                                         deadlock->ranks.front().instruction));
  }
  if (std::holds_alternative<Cancelled>(outcome)) throw std::runtime_error("cancelled");
  run.execution = std::move(std::get<Execution>(outcome));
  for (const Ps t : executor.values().iterations) run.iterations_s.push_back(to_seconds(t).value);
  run.loss = executor.values().loss;
  return run;
}

namespace {

// Members of a collective or the ends of a message: from the last of them to begin until all have
// ended, so that nobody's wait for a late one counts, and everybody's for being woken does.
struct Joint {
  std::vector<std::uint32_t> calls;
  Ps start = 0, end = 0;
};

class JointTimes {
 public:
  explicit JointTimes(const Plan& plan) : plan_(plan) {}

  void add(const OpEvent& e) {
    const Instruction& i = *e.instruction;
    const SlotId slot = plan_.call(i).op.slot;
    if (i.kind == Kind::Collective) {
      const std::uint32_t group = plan_.communicator(e.rank, slot).value;
      const std::size_t turn = collectives_[{group, e.rank.value}]++;
      return join(by_collective_[{group, turn}], e);
    }
    const std::uint32_t peer = plan_.peer(e.rank, slot).value;
    const bool send = i.kind == Kind::Send;
    const std::pair way(send ? e.rank.value : peer, send ? peer : e.rank.value);
    const std::size_t turn = messages_[{way, send}]++;
    join(by_message_[{way, turn}], e);
  }

  void give(std::vector<std::vector<double>>& times) const {
    const auto each = [&](const Joint& joint) {
      for (const std::uint32_t call : joint.calls) {
        times[call].push_back(to_seconds(joint.end - joint.start).value);
      }
    };
    for (const auto& [key, joint] : by_collective_) each(joint);
    for (const auto& [key, joint] : by_message_) each(joint);
  }

 private:
  using Way = std::pair<std::uint32_t, std::uint32_t>;

  static void join(Joint& joint, const OpEvent& e) {
    const bool known =
        std::find(joint.calls.begin(), joint.calls.end(), e.instruction->call) != joint.calls.end();
    if (!known) joint.calls.push_back(e.instruction->call);
    joint.start = std::max(joint.start, e.start);
    joint.end = std::max(joint.end, e.end);
  }

  const Plan& plan_;
  std::map<Way, std::size_t> collectives_;  // of a communicator, by rank
  std::map<std::pair<std::uint32_t, std::size_t>, Joint> by_collective_;
  std::map<std::pair<Way, bool>, std::size_t> messages_;  // sent or received from one to another
  std::map<std::pair<Way, std::size_t>, Joint> by_message_;
};

}  // namespace

std::vector<double> call_medians(const Plan& plan, const HostRun& run) {
  std::vector<std::vector<double>> times(plan.calls.size());
  JointTimes joint(plan);
  std::uint32_t first = ~0u, last = 0;
  for (const OpEvent& e : run.events) {
    first = std::min(first, e.body);
    last = std::max(last, e.body);
  }
  for (const OpEvent& e : run.events) {
    if (e.body == first && last > first) continue;
    const Kind kind = e.instruction->kind;
    if (kind == Kind::Collective || kind == Kind::Send || kind == Kind::Recv) {
      joint.add(e);
    } else {
      times[e.instruction->call].push_back(to_seconds(e.end - e.start).value);
    }
  }
  joint.give(times);
  std::vector<double> medians;
  for (auto& list : times) medians.push_back(median(std::move(list)));
  return medians;
}

double yardstick_s() {
  // Few weights, whose first values take longer than the job itself.
  const HostJob job{.name = "yardstick", .hidden = 64, .heads = 2, .sequence = 192, .dp = 2};
  const HostPlan made(job);
  const std::vector<double> medians =
      call_medians(made.plan, run_on_host(made.plan, host_options(job, 4)));
  double all = 0;
  for (std::size_t c = 0; c < medians.size(); ++c) {
    if (made.plan.calls[c].op.kind < OpKind::AllReduce) all += medians[c];
  }
  return all;
}

}  // namespace gputwin::probes
