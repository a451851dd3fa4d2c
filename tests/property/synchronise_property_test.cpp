// Random programs on several streams: after synchronise() every conflict is ordered, and no derived
// wait can be taken away.
#include <rapidcheck/gtest.h>

#include "sim/core/plan_builder.h"
#include "sim/core/verify.h"

namespace gputwin {
namespace {

// One rank, 2-4 streams, 3 buffers (two framed) of 8 x 8; tasks read and write random rectangles of
// them.
Plan random_program() {
  PlanBuilder builder;
  builder.arena({"gpu", Bytes(0)});
  const auto streams = *rc::gen::inRange(2, 5);
  for (int b = 0; b < 3; ++b) {
    builder.buffer({.name = "b" + std::to_string(b),
                    .bytes = Bytes(8 * 8 * 4),
                    .framed = b > 0,
                    .persistent = b == 0});
  }
  const auto view = [] {
    const std::int64_t row = *rc::gen::inRange(0, 4) * 2, col = *rc::gen::inRange(0, 4) * 2;
    const std::int64_t rows = *rc::gen::inRange<std::int64_t>(1, 9 - row),
                       cols = *rc::gen::inRange<std::int64_t>(1, 9 - col);
    const auto buffer = static_cast<std::uint32_t>(*rc::gen::inRange(0, 3));
    return View{BufferId(buffer), row * 8 + col, rows, cols, 8, DType::F32};
  };
  Program p;
  p.name = "p";
  p.frames = 2;
  for (int s = 0; s < streams; ++s)
    p.streams.push_back({"s" + std::to_string(s), StreamKind::Compute});
  const int tasks = *rc::gen::inRange(1, 30);
  for (int t = 0; t < tasks; ++t) {
    Call call;
    call.op.kind = OpKind::Opaque;
    call.op.dims[0] = t;
    if (*rc::gen::arbitrary<bool>()) call.reads.push_back(view());
    if (*rc::gen::arbitrary<bool>()) call.writes.push_back(view());
    p.body.push_back({.kind = Kind::Kernel,
                      .stream = static_cast<std::uint8_t>(*rc::gen::inRange(0, streams)),
                      .call = builder.call(std::move(call)).value,
                      .name = builder.name({Phase::Forward, 0, "t", t}).value,
                      .event = static_cast<std::uint32_t>(*rc::gen::inRange(0, 2))});
  }
  const ProgramId id = builder.program(std::move(p));
  builder.rank({id, GpuId(0), 1.0, {}});
  return std::move(builder).take();
}

Plan finished(Plan plan) {
  place_memory(plan, plan.programs[0]);
  synchronise(plan, plan.programs[0]);
  return plan;
}

RC_GTEST_PROP(Synchronise, OrdersEveryConflict, ()) {
  const Plan plan = finished(random_program());
  for (const Violation& v : verify(plan, Depth::Races))
    RC_FAIL(v.rule + " " + v.where + " " + v.what);
}

RC_GTEST_PROP(Synchronise, AddsNoWaitInVain, ()) {
  const Plan plan = finished(random_program());
  for (std::size_t i = 0; i < plan.programs[0].body.size(); ++i) {
    if (plan.programs[0].body[i].kind != Kind::Wait) continue;
    Plan without = plan;
    without.programs[0].body.erase(without.programs[0].body.begin() +
                                   static_cast<std::ptrdiff_t>(i));
    const auto violations = verify(without, Depth::Races);
    RC_ASSERT(!violations.empty());
    RC_ASSERT(violations.front().rule == "race");
  }
}

}  // namespace
}  // namespace gputwin
