#include "strategies/lowering/ring.h"

#include "strategies/lowering/quantize.h"

namespace gputwin {
namespace {

// One way around.
struct Way {
  bool back = false;
  std::int64_t steps = 0;  // messages that a shard takes this way
};

std::array<Way, 2> ways(const StageBuilder& b) {
  const std::int64_t others = b.layout.tp - 1;
  const bool both = b.layout.tp_overlap == TpOverlap::RingBothWays;
  const std::int64_t back = both ? others / 2 : 0;
  return {Way{false, others - back}, Way{true, back}};
}

// Sends `x` one step on and returns what arrives.
View pass_on(StageBuilder& b, const Way& way, const std::string& name, const View& x) {
  const StageWiring& w = b.wiring;
  const View next = b.temporary(name, x.rows, x.cols, x.dtype);
  b.send(way.back ? w.ring_send_back_stream : w.ring_send_stream,
         way.back ? w.tp_previous : w.tp_next, name + "_send", x);
  b.receive(way.back ? w.ring_receive_back_stream : w.ring_receive_stream,
            way.back ? w.tp_next : w.tp_previous, name + "_receive", next);
  return next;
}

std::string numbered(const std::string& name, const Way& way, std::int64_t step) {
  return name + (way.back ? "_ring_back" : "_ring") + std::to_string(step);
}

// The rows of the member `distance` ranks before this one (after it, if negative).
RingRows rows_of(const StageBuilder& b, std::int64_t distance) {
  const std::int64_t n = b.layout.tp;
  return {true, static_cast<std::uint32_t>((distance + n) % n)};
}

}  // namespace

bool has_rings(const StageBuilder& b) {
  return is_ring(b.layout.tp_overlap) && b.layout.sp && b.layout.tp > 1 && b.job.lora_rank == 0 &&
         !is_narrow(b);
}

void ring_gather(StageBuilder& b, const std::string& name, const View& shard,
                 const std::function<void(const View& held, RingRows of)>& act) {
  std::array<View, 2> held{shard, shard};
  for (std::int64_t step = 0; step <= ways(b)[0].steps; ++step) {
    for (const Way& way : ways(b)) {
      if (step > way.steps) continue;
      View& held_here = held[way.back ? 1 : 0];
      const View now = held_here;
      // The next shard travels while this one is multiplied.
      if (step < way.steps) held_here = pass_on(b, way, numbered(name, way, step + 1), now);
      if (way.back && step == 0) continue;  // the own rows once
      act(now, rows_of(b, way.back ? -step : step));
    }
  }
}

View ring_scatter(StageBuilder& b, const std::string& name, std::int64_t cols,
                  const std::function<void(const View& part, RingRows of)>& produce) {
  const std::int64_t rows = b.sizes.shard_tokens;
  std::array<View, 2> arrived{};
  for (std::int64_t step = 0; step < ways(b)[0].steps; ++step) {
    for (const Way& way : ways(b)) {
      if (step >= way.steps) continue;
      // What is made here now has way.steps - step messages to go to the rank that keeps it.
      const std::int64_t to_go = way.steps - step;
      const std::string at = numbered(name, way, step);
      const View part = b.temporary(at, rows, cols);
      produce(part, rows_of(b, way.back ? to_go : -to_go));
      View& sum = arrived[way.back ? 1 : 0];
      if (step > 0) {
        b.kernel(at + "_add", {.kind = OpKind::Add, .dims = {part.elements()}}, {part, sum},
                 {part});
      }
      sum = pass_on(b, way, at + "_sum", part);
    }
  }
  const View own = b.temporary(name + "_scattered", rows, cols);
  produce(own, rows_of(b, 0));
  for (const View& sum : arrived) {
    if (!present(sum)) continue;
    b.kernel(name + "_ring_add", {.kind = OpKind::Add, .dims = {own.elements()}}, {own, sum},
             {own});
  }
  return own;
}

}  // namespace gputwin
