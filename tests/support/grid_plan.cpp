#include "tests/support/grid_plan.h"

#include <string>

#include "sim/core/plan_builder.h"
#include "sim/engine/jitter.h"

namespace gputwin::test {
namespace {

enum Stream : std::uint8_t { kCompute, kTp, kDp, kPp };
enum SlotIndex : std::uint32_t { kTpSlot, kDpSlot, kEndsSlot, kPrevious, kNext };

/// Writes the program of one stage.
class StageDraft {
 public:
  StageDraft(const Grid& grid, std::uint32_t stage, PlanBuilder& builder)
      : grid_(grid), stage_(stage), builder_(builder), random_(splitmix64(grid.seed + stage)) {
    program_.name = "stage" + std::to_string(stage);
    program_.streams = {{"compute", StreamKind::Compute},
                        {"tp", StreamKind::Communication},
                        {"dp", StreamKind::Communication},
                        {"pp", StreamKind::Communication}};
    program_.slots = {{"tp", Domain::Tp, false},
                      {"dp", Domain::Dp, false},
                      {"ends", Domain::Dp, false},
                      {"previous", Domain::Pp, true},
                      {"next", Domain::Pp, true}};
  }

  Program write() && {
    for (std::uint32_t m = 0; m < grid_.micro_batches; ++m) pass(kPrevious, kNext);
    for (std::uint32_t m = 0; m < grid_.micro_batches; ++m) pass(kNext, kPrevious);
    const bool end = grid_.pp > 1 && (stage_ == 0 || stage_ + 1 == grid_.pp);
    order(kCompute, kDp);
    if (grid_.dp > 1) task(Kind::Collective, kDp, OpKind::AllReduce, kDpSlot, shared(1) * 1680);
    if (end) task(Kind::Collective, kDp, OpKind::AllReduce, kEndsSlot, 84'000);
    order(kDp, kCompute);
    kernel();
    return std::move(program_);
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return (random_ = splitmix64(random_)) % bound; }
  /// A number all stages agree on.
  std::int64_t shared(std::uint64_t what) const {
    return static_cast<std::int64_t>(1 + splitmix64(grid_.seed ^ (what << 32)) % 200);
  }
  bool has(SlotIndex peer) const { return peer == kPrevious ? stage_ > 0 : stage_ + 1 < grid_.pp; }
  void task(Kind kind, Stream stream, OpKind op, std::uint32_t slot, std::int64_t elements) {
    Op what;
    what.kind = op;
    what.slot = SlotId(slot);
    what.dims[0] = elements;
    push(kind, stream, what);
  }
  void kernel() {
    Op what;
    what.flops = Flops(static_cast<double>(1 + below(30)) * 1e6);
    push(Kind::Kernel, kCompute, what);
  }
  void push(Kind kind, Stream stream, const Op& op) {
    const auto occurrence = static_cast<std::int32_t>(program_.body.size());
    program_.body.push_back({.kind = kind,
                             .stream = stream,
                             .call = builder_.call({op, {}, {}}).value,
                             .name = builder_.name({Phase::Forward, 0, "t", occurrence}).value});
  }
  /// What comes on stream `to` waits for all so far on `from`.
  void order(Stream from, Stream to) {
    const std::uint32_t event = program_.events++;
    program_.body.push_back({.kind = Kind::Record, .stream = from, .event = event});
    program_.body.push_back({.kind = Kind::Wait, .stream = to, .event = event});
  }
  void pass(SlotIndex from, SlotIndex to) {
    const std::int64_t activations = shared(2) * 840;
    if (has(from)) {
      task(Kind::Recv, kPp, OpKind::RecvFrom, from, activations);
      order(kPp, kCompute);
    }
    for (std::uint64_t k = 1 + stage_ % 3; k > 0; --k) {
      kernel();
      if (grid_.tp < 2) continue;
      order(kCompute, kTp);
      task(Kind::Collective, kTp, OpKind::AllReduce, kTpSlot, shared(3) * 840);
      if (k % 2 == 1) order(kTp, kCompute);
    }
    if (!has(to)) return;
    order(kCompute, kPp);
    task(Kind::Send, kPp, OpKind::SendTo, to, activations);
  }

  const Grid& grid_;
  std::uint32_t stage_;
  PlanBuilder& builder_;
  std::uint64_t random_;
  Program program_;
};

}  // namespace

Plan grid_plan(const Grid& grid) {
  PlanBuilder builder;
  const auto [tp, dp, pp, micro_batches, seed] = grid;
  const auto rank = [&](std::uint32_t t, std::uint32_t d, std::uint32_t p) {
    return RankId(t + tp * (d + dp * p));
  };
  for (std::uint32_t p = 0; p < pp; ++p) {
    builder.program(StageDraft(grid, p, builder).write());
    for (std::uint32_t d = 0; d < dp; ++d) {
      Communicator members{"tp" + std::to_string(d + dp * p), {}};
      for (std::uint32_t t = 0; t < tp; ++t) members.members.push_back(rank(t, d, p));
      builder.communicator(std::move(members));
    }
  }
  for (std::uint32_t p = 0; p < pp; ++p) {
    for (std::uint32_t t = 0; t < tp; ++t) {
      Communicator members{"dp" + std::to_string(t + tp * p), {}};
      for (std::uint32_t d = 0; d < dp; ++d) members.members.push_back(rank(t, d, p));
      builder.communicator(std::move(members));
    }
  }
  for (std::uint32_t i = 0; i < tp * dp; ++i) {
    builder.communicator({"ends" + std::to_string(i), {RankId(i), RankId(i + tp * dp * (pp - 1))}});
  }
  for (std::uint32_t p = 0; p < pp; ++p) {
    for (std::uint32_t d = 0; d < dp; ++d) {
      for (std::uint32_t t = 0; t < tp; ++t) {
        const std::uint32_t first_dp = dp * pp, first_ends = first_dp + tp * pp;
        builder.rank({ProgramId(p),
                      GpuId(rank(t, d, p).value),
                      1.0,
                      {d + dp * p, first_dp + t + tp * p, first_ends + t + tp * d,
                       rank(t, d, (p + pp - 1) % pp).value, rank(t, d, (p + 1) % pp).value}});
      }
    }
  }
  return std::move(builder).take();
}

}  // namespace gputwin::test
