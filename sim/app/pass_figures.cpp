#include "sim/app/pass_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "sim/app/report.h"
#include "sim/core/codecs.h"
#include "strategies/passes/compress.h"

namespace gputwin {
namespace {

Ps exposed(const Execution& run, Part part) {
  if (!run.last_rank.valid() || run.last_rank.value >= run.breakdown.size()) return 0;
  return run.breakdown[run.last_rank.value][static_cast<std::size_t>(part)];
}

enum Class : std::size_t { kForward, kBackward, kReduced, kSent, kSentBack, kClasses };
constexpr std::array<const char*, kClasses> kTensors{
    "layer activations", "layer gradients", "gradients over dp", "messages", "messages back"};

// The class whose bytes an instruction sends; kClasses: none.
std::size_t class_of(const Plan& plan, const Program& program, const Instruction& i) {
  const Name& name = plan.names[i.name];
  if (i.kind == Kind::Send && name.op == "send_activations") return kSent;
  if (i.kind == Kind::Send && name.op == "send_gradients") return kSentBack;
  if (i.kind != Kind::Collective) return kClasses;
  const Domain domain = program.slots[plan.call(i).op.slot.value].domain;
  if (domain == Domain::Dp && name.phase == Phase::Reduce) return kReduced;
  if (domain != Domain::Tp) return kClasses;
  const bool forward = name.phase == Phase::Forward || name.phase == Phase::Recompute;
  const bool backward = name.phase == Phase::Backward || name.phase == Phase::WeightGrad;
  return forward ? kForward : backward ? kBackward : kClasses;
}

// What a rank sends: 2 (t - 1) / t of an all-reduce, (t - 1) / t of other collectives' larger side.
double sent_bytes(const Plan& plan, RankId rank, const Instruction& i) {
  const Call& call = plan.call(i);
  const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
  if (i.kind == Kind::Send) return static_cast<double>(bytes.value);
  const auto& members = plan.communicators[plan.communicator(rank, call.op.slot).value].members;
  const auto t = static_cast<double>(members.size());
  const double times = call.op.kind == OpKind::AllReduce ? 2.0 : 1.0;
  return times * (t - 1) / t * static_cast<double>(bytes.value);
}

using ClassBytes = std::array<double, kClasses>;

// By class, of the program that sends most.
ClassBytes class_bytes(const Plan& plan) {
  ClassBytes most{};
  std::vector<char> seen(plan.programs.size(), 0);
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    if (std::exchange(seen[plan.ranks[r].program.value], 1) != 0) continue;
    const Program& program = plan.program_of(RankId(r));
    ClassBytes sum{};
    for (const Instruction& i : program.body) {
      const std::size_t c = class_of(plan, program, i);
      if (c < kClasses) sum[c] += sent_bytes(plan, RankId(r), i);
    }
    for (std::size_t c = 0; c < kClasses; ++c) most[c] = std::max(most[c], sum[c]);
  }
  return most;
}

double seconds(Ps time) { return to_seconds(time).value; }

}  // namespace

bool has_passes(const Layout& layout) {
  return layout.chunk_overlap.on() || layout.compression.on();
}

Layout without_passes(Layout layout) {
  layout.chunk_overlap = {};
  layout.compression = {};
  return layout;
}

Bytes tp_bytes(const Plan& plan) {
  if (plan.programs.empty() || plan.ranks.empty()) return {};
  const Program& program = plan.program_of(RankId(0));
  double sum = 0;
  for (const Instruction& i : program.body) {
    if (i.kind != Kind::Collective) continue;
    if (program.slots[plan.call(i).op.slot.value].domain != Domain::Tp) continue;
    sum += sent_bytes(plan, RankId(0), i);
  }
  return Bytes(std::llround(sum));
}

PassFigures pass_figures(const Layout& chosen, const Plan& blocking, const Plan& plan,
                         std::int64_t width) {
  PassFigures f;
  f.forward_chunks = chosen.chunk_overlap.forward;
  f.backward_chunks = chosen.chunk_overlap.backward;
  f.chunks_asked = chosen.chunk_overlap.on();
  f.sequence_chunks = chosen.chunk_overlap.sequence(chosen.micro_batch);
  f.blocking_bytes = tp_bytes(blocking);
  f.bytes = tp_bytes(plan);
  const Compression& c = chosen.compression;
  f.forward_codec = describe(c.forward);
  f.backward_codec = describe(c.backward);
  const std::array<const Codec*, kClasses> codecs{&c.forward, &c.backward, &c.reduced, &c.sent,
                                                  &c.sent_back};
  const ClassBytes before = class_bytes(blocking), after = class_bytes(plan);
  for (std::size_t i = 0; i < kClasses; ++i) {
    if (before[i] == 0) continue;
    const bool scattered = i == kReduced ? chosen.zero == 1 : i > kReduced || chosen.sp;
    const std::int64_t row = i == kReduced ? kGradientRow : width;
    const auto error = exchange_error(*codecs[i], c.sum, row, scattered);
    std::string codec = describe(*codecs[i]);
    if (i == kReduced && c.on_gradients() && c.feedback) codec += ", error feedback";
    f.classes.push_back({.tensors = kTensors[i],
                         .codec = std::move(codec),
                         .blocking_bytes = Bytes(std::llround(before[i])),
                         .bytes = Bytes(std::llround(after[i])),
                         .expected_error = error});
    f.expected_error = std::max(f.expected_error, error.value_or(0.0));
  }
  return f;
}

void judge(PassFigures& f, const Execution& blocking, const Execution& run) {
  f.blocking_iteration = blocking.iteration;
  f.blocking_exposed = exposed(blocking, Part::ExposedTp);
  f.exposed = exposed(run, Part::ExposedTp);
  f.blocking_exposed_dp = exposed(blocking, Part::ExposedDp);
  f.exposed_dp = exposed(run, Part::ExposedDp);
  f.blocking_exposed_pp = exposed(blocking, Part::ExposedPp);
  f.exposed_pp = exposed(run, Part::ExposedPp);
  const double speed_up = seconds(blocking.iteration) / seconds(run.iteration);
  if (speed_up > 1.001) {
    f.verdict =
        fmt::format("The passes pay: {:.3f} times as fast as with blocking collectives.", speed_up);
    return;
  }
  const Ps exposed_before = f.blocking_exposed + f.blocking_exposed_dp + f.blocking_exposed_pp;
  const double share = seconds(exposed_before) / seconds(blocking.iteration);
  const bool little = share < 0.03;
  Bytes before{}, after{};
  for (const CodedClass& c : f.classes) {
    before += c.blocking_bytes;
    after += c.bytes;
  }
  const bool coded = after < before, longer = before < after;
  f.verdict = fmt::format(
      "The passes do not pay ({:.3f} times as fast as with blocking collectives): {}.", speed_up,
      little ? fmt::format("only {:.1f} % of the iteration was exposed communication", share * 100)
      : longer ? "payloads that every rank gathers are longer than the sums they replace"
      : coded  ? "encoding, decoding and exchanges of payloads cost more than shorter messages save"
               : "chunks make kernels less efficient and messages slower than hiding them saves");
}

}  // namespace gputwin
