// Does a prediction put variants of a plan in the order in which they then run? Kernels are timed
// in runs with links as fast as memory; the variants are predicted with those times and with slow
// links, and run with the same slow links.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <tuple>

#include "sim/engine/reference_executor.h"
#include "strategies/offload/strategies.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"
#include "tests/unit/strategies/worlds.h"
#include "validation/executors/host/host_executor.h"

namespace gputwin::executors {
namespace {

/// A layer of hidden 128 on sequences of 256: an iteration of 8 samples has 4 GFLOP.
Transformer small_gpt() {
  Transformer m = tiny_gpt();
  m.layers = 1;
  m.hidden = 128;
  m.heads = m.kv_heads = 4;
  m.head_dim = 32;
  m.ffn = 512;
  m.vocab = 64;
  m.max_positions = 256;
  return m;
}

Job small_job(std::int64_t batch, DType format = DType::F32) {
  Job job = tiny_job(batch);
  job.sequence = 256;
  job.precision.compute = job.precision.params = format;
  job.precision.grads = DType::F32;
  return job;
}

/// Durations by what an op is: the least of those seen, which other programs disturb least.
struct Timed final : EventSink {
  using Key = std::tuple<OpKind, std::array<std::int64_t, 6>, bool, bool>;
  static Key key(const Op& op) { return {op.kind, op.dims, op.trans_a, op.trans_b}; }

  explicit Timed(const Plan& of) : plan(of) {}
  void op(const OpEvent& e) override {
    const Kind kind = e.instruction->kind;
    if (e.body == 0 || (kind != Kind::Kernel && kind != Kind::HostTask)) return;
    const Ps took = e.end - e.start;
    Ps& least = seen.try_emplace(key(plan.call(*e.instruction).op), took).first->second;
    least = std::min(least, took);
  }
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return true; }

  const Plan& plan;
  std::map<Key, Ps> seen;
};

/// Kernels by their times on this computer; links as the governor has them.
struct Calibrated final : CostModel {
  std::map<Timed::Key, Ps> kernels;
  test::TableCostModel links;

  Cost kernel(const Op& op, Bytes, Bytes, DeviceKindId) const override {
    Cost cost;
    const auto found = kernels.find(Timed::key(op));
    if (found != kernels.end()) cost.time = to_seconds(found->second);
    return cost;
  }
  Cost copy(CopyKind kind, Bytes bytes, bool pinned, GpuId gpu) const override {
    return links.copy(kind, bytes, pinned, gpu);
  }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override {
    return links.collective(kind, bytes, members);
  }
  Interference interference(DeviceKindId) const override { return {1.0}; }
  HostCost host(DeviceKindId) const override { return {}; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t>) const override { return {}; }
};

struct Measured {
  double predicted = 0, ran = 0;  // seconds an iteration
};

double seconds(const ExecutionOutcome& outcome) {
  return to_seconds(std::get<Execution>(outcome).iteration).value;
}

HostOptions options_with(Link link) {
  HostOptions options;
  options.bodies = 3;
  options.collectives = options.messages = options.copies = link;
  return options;
}

/// Seconds that an iteration should take, by a run of its own with fast links.
double predicted(const Plan& plan, Link link) {
  Timed timed(plan);
  HostExecutor(options_with({})).run(plan, &timed);
  Calibrated costs;
  costs.kernels = timed.seen;
  costs.links.latency = costs.links.copy_start_up = link.latency;
  costs.links.rate_cap = costs.links.copy_rate = link.rate;
  const auto ranks = static_cast<std::int32_t>(plan.ranks.size());
  const Topology topology(test::small_cluster({.gpus = ranks}));
  return seconds(ReferenceExecutor().run(plan, costs, topology, RunOptions{}, nullptr));
}

/// Shortest iteration of a run.
double shortest(const Plan& plan, Link link) {
  HostExecutor host(options_with(link));
  host.run(plan, nullptr);
  const auto& all = host.values().iterations;
  return to_seconds(*std::min_element(all.begin(), all.end())).value;
}

/// Both in the order predicted, if that is by a tenth or more; and each within a factor of 4.
void expect_order(const char* what, const Plan& a, const Plan& b, Link link) {
  Measured first{predicted(a, link), shortest(a, link)};
  Measured second{predicted(b, link), shortest(b, link)};
  first.ran = std::min(first.ran, shortest(a, link));
  second.ran = std::min(second.ran, shortest(b, link));
  std::printf("%s: predicted %.1f and %.1f ms, ran %.1f and %.1f ms\n", what, first.predicted * 1e3,
              second.predicted * 1e3, first.ran * 1e3, second.ran * 1e3);
  for (const Measured& m : {first, second}) {
    EXPECT_LT(m.ran, 4 * m.predicted) << what;
    EXPECT_GT(m.ran, m.predicted / 4) << what;
  }
  const double apart = second.predicted / first.predicted;
  ASSERT_GT(std::max(apart, 1 / apart), 1.1) << what << ": variants that tell nothing apart";
  EXPECT_EQ(apart > 1, second.ran > first.ran) << what;
}

constexpr Link kSlow{BytesPerSecond(100e6), Seconds(0.2e-3)};

Layout tensor_parallel() {
  Layout l;
  l.tp = 2;
  l.micro_batch = 8;
  return l;
}

TEST(HostVariants, ChunkedOverlapAgainstBlocking) {
  Layout chunks = tensor_parallel();
  chunks.chunk_overlap = {.max_chunks = 4, .forward = {4, 4}, .backward = {4, 4}};
  Transformer model = small_gpt();
  model.layers = 3;  // the sums of embedding and head are not cut
  const Job job = small_job(8);
  expect_order("blocking, overlapped", plan_of(model, tensor_parallel(), job),
               plan_of(model, chunks, job), kSlow);
}

TEST(HostVariants, CompressedAgainstPlainExchanges) {
  Layout plain = tensor_parallel(), coded = plain;
  coded.compression.forward = coded.compression.backward = {CodecKind::Pwq, 1.0, 4, 0};
  coded.micro_batch = plain.micro_batch = 2;
  const Job job = small_job(2, DType::Bf16);
  expect_order("plain, compressed", plan_of(small_gpt(), plain, job),
               plan_of(small_gpt(), coded, job), {BytesPerSecond(3e6), Seconds(0.2e-3)});
}

TEST(HostVariants, OffloadedAgainstResident) {
  Layout resident;
  resident.schedule = Schedule::None;
  resident.micro_batch = 4;
  Layout offloaded = resident;
  offloaded.offload = *find_offload_strategy("greedy");
  offloaded.offload.bucket_elements = 60000;
  const Job job = small_job(4);
  expect_order("resident, offloaded", plan_of(small_gpt(), resident, job),
               plan_of(small_gpt(), offloaded, job), {BytesPerSecond(20e6), Seconds(0.2e-3)});
}

// Messages of four micro-batches pass each other and the work of the stages; the two of one
// micro-batch stand alone, before and after everything.
TEST(HostVariants, PipelineOfManyAgainstOfOneMicroBatch) {
  Layout many;
  many.pp = 2;
  many.schedule = Schedule::OneFOneB;
  many.micro_batch = 2;
  Layout one = many;
  one.micro_batch = 8;
  const Job job = small_job(8);
  expect_order("1F1B of 4, of 1", plan_of(small_gpt(), many, job), plan_of(small_gpt(), one, job),
               {BytesPerSecond(6e6), Seconds(0.2e-3)});
}

}  // namespace
}  // namespace gputwin::executors
