#include "sim/app/ablation.h"

#include <algorithm>
#include <array>
#include <map>

namespace gputwin {
namespace {

constexpr std::array<std::string_view, kMechanisms> kWords{
    "tp_comm",       "dp_comm",        "cp_comm",   "p2p",        "bubble",    "memory_bound",
    "attention",     "lm_head",        "recompute", "gemm_tiles", "optimizer", "host",
    "stack_factors", "head_alignment", "power"};

bool is_attention(OpKind kind) {
  return is_attention_gemm(kind) || kind == OpKind::FlashForward || kind == OpKind::FlashBackward;
}

Mechanism domain_mechanism(Domain domain) {
  switch (domain) {
    case Domain::Tp: return Mechanism::TpComm;
    case Domain::Cp: return Mechanism::CpComm;
    case Domain::Pp:
    case Domain::Ep:
    case Domain::Dp: return Mechanism::DpComm;
  }
  return Mechanism::DpComm;
}

// Decides by name, kind and domain which instructions are free.
class Selection {
 public:
  explicit Selection(const Mechanisms& set) {
    for (const Mechanism m : set) in_[static_cast<std::size_t>(m)] = true;
  }
  bool has(Mechanism m) const { return in_[static_cast<std::size_t>(m)]; }

  bool frees(const Plan& plan, const Program& program, const Instruction& i) const {
    const Op& op = plan.calls[i.call].op;
    if (i.kind == Kind::Send || i.kind == Kind::Recv) return has(Mechanism::P2p);
    const Name& name = plan.names[i.name];
    if (name.phase == Phase::Optimizer) return has(Mechanism::Optimizer);
    if (name.phase == Phase::Recompute && has(Mechanism::Recompute)) return true;
    const bool pass = name.phase == Phase::Forward || name.phase == Phase::Backward ||
                      name.phase == Phase::WeightGrad;
    if (name.layer < 0 && pass && has(Mechanism::LmHead)) return true;
    if (i.kind == Kind::Collective) {
      return has(domain_mechanism(program.slots[op.slot.value].domain));
    }
    if (i.kind != Kind::Kernel || op.kind == OpKind::Gemm || op.kind == OpKind::Opaque ||
        is_convolution(op.kind) || is_recurrent(op.kind)) {
      return false;
    }
    return has(is_attention(op.kind) ? Mechanism::Attention : Mechanism::MemoryBound);
  }

 private:
  std::array<bool, kMechanisms> in_{};
};

// A call of no work: dimensions and views of size zero.
Call of_no_work(Call call) {
  call.op.dims = {};
  call.op.flops = Flops(0);
  for (auto* views : {&call.reads, &call.writes}) {
    for (View& v : *views) v.rows = v.cols = 0;
  }
  return call;
}

bool is_free(const Op& op) {
  return op.kind != OpKind::Opaque &&
         std::all_of(op.dims.begin(), op.dims.end(), [](std::int64_t d) { return d == 0; });
}

}  // namespace

std::span<const std::string_view> mechanism_words() { return kWords; }

bool contains(const Mechanisms& set, Mechanism mechanism) {
  return std::find(set.begin(), set.end(), mechanism) != set.end();
}

Adjustments without(const Mechanisms& set, Adjustments adjustments) {
  if (contains(set, Mechanism::StackFactors)) adjustments.stack_factors = false;
  if (contains(set, Mechanism::HeadAlignment)) adjustments.head_alignment = false;
  if (contains(set, Mechanism::Power)) adjustments.power_limits = false;
  return adjustments;
}

void make_free(Plan& plan, const Mechanisms& set) {
  if (set.empty()) return;
  const Selection selection(set);
  std::map<std::uint32_t, std::uint32_t> free_call;
  for (Program& program : plan.programs) {
    for (auto* list : {&program.prologue, &program.body}) {
      for (Instruction& i : *list) {
        if (!is_task(i.kind) || !selection.frees(plan, program, i)) continue;
        const auto [found, added] =
            free_call.try_emplace(i.call, static_cast<std::uint32_t>(plan.calls.size()));
        if (added) plan.calls.push_back(of_no_work(plan.calls[i.call]));
        i.call = found->second;
      }
    }
  }
}

Cost AblatedCosts::kernel(const Op& op, Bytes read, Bytes written, DeviceKindId device) const {
  if (is_free(op)) return {};
  Cost cost = costs_.kernel(op, read, written, device);
  if (op.kind == OpKind::Gemm && contains(set_, Mechanism::GemmTiles)) {
    cost.time = cost.term(Term::Compute);
  }
  return cost;
}

CollectiveSchedule AblatedCosts::collective(OpKind kind, Bytes bytes,
                                            std::span<const GpuId> members) const {
  if (bytes.value == 0) return {};
  return costs_.collective(kind, bytes, members);
}

HostCost AblatedCosts::host(DeviceKindId device) const {
  HostCost cost = costs_.host(device);
  if (contains(set_, Mechanism::Host)) cost = {.queue_depth = cost.queue_depth};
  return cost;
}

void remove_bubble(Execution& execution) {
  if (!execution.last_rank.valid()) return;
  Breakdown& parts = execution.breakdown[execution.last_rank.value];
  Ps& bubble = parts[static_cast<std::size_t>(Part::Bubble)];
  execution.iteration -= bubble;
  bubble = 0;
}

}  // namespace gputwin
