#include "tests/unit/validation/real_runs.h"

namespace gputwin::executors {

Job single_job(std::int64_t batch, AttentionKernel attention) {
  Job job = tiny_job(batch);
  job.attention = attention;
  job.precision.compute = job.precision.params = job.precision.grads = DType::F32;
  return job;
}

Layout one_rank() {
  Layout l;
  l.schedule = Schedule::None;
  l.micro_batch = 2;
  return l;
}

InterpretOptions same_values() {
  InterpretOptions values;
  values.generic_constants = true;
  values.bodies = kBodies;
  values.adam_epsilon = 1e-2;  // rounding of gradients near 0 does not turn into whole steps
  return values;
}

double true_loss(const Plan& plan) { return interpret(plan, same_values()).loss; }

std::vector<Case> layouts() {
  std::vector<Case> list;
  const auto add = [&](const char* name, auto change) {
    Layout l;
    l.micro_batch = 1;
    l.bucket_elements = 300;
    change(l);
    list.push_back({name, l});
  };
  add("tp2", [](Layout& l) { l.tp = 2; });
  add("tp2 sp", [](Layout& l) { l.tp = 2, l.sp = true; });
  add("tp2 chunks", [](Layout& l) {
    l.tp = 2, l.micro_batch = 4;
    l.chunk_overlap = {.max_chunks = 4, .forward = {2, 2}, .backward = {2, 2}};
  });
  add("tp2 chunks of a sequence", [](Layout& l) {
    l.tp = 2;
    l.chunk_overlap = {
        .max_chunks = 2, .split = ChunkSplit::Sequence, .forward = {2, 2}, .backward = {2, 2}};
  });
  add("pp2 1f1b", [](Layout& l) { l.pp = 2, l.schedule = Schedule::OneFOneB; });
  add("dp2", [](Layout& l) { l.dp = 2; });
  add("dp2 zero1", [](Layout& l) { l.dp = 2, l.zero = 1; });
  add("dp2 zero3", [](Layout& l) { l.dp = 2, l.zero = 3; });
  add("tp2 pp2 dp2", [](Layout& l) { l.tp = l.pp = l.dp = 2; });
  return list;
}

void StreamOrder::op(const OpEvent& e) {
  Ps& last = ends[{e.rank.value, e.instruction->stream}];
  EXPECT_LE(last, e.start);
  EXPECT_LE(e.start, e.end);
  last = e.end;
  ++count;
}

}  // namespace gputwin::executors
