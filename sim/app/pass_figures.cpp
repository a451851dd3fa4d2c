#include "sim/app/pass_figures.h"

#include <fmt/format.h>

#include <cmath>

#include "sim/app/report.h"
#include "sim/core/codecs.h"
#include "strategies/passes/compress.h"

namespace gputwin {
namespace {

Ps exposed_tp(const Execution& run) {
  if (!run.last_rank.valid() || run.last_rank.value >= run.breakdown.size()) return 0;
  return run.breakdown[run.last_rank.value][static_cast<std::size_t>(Part::ExposedTp)];
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
    const Call& call = plan.call(i);
    if (program.slots[call.op.slot.value].domain != Domain::Tp) continue;
    const auto& members =
        plan.communicators[plan.communicator(RankId(0), call.op.slot).value].members;
    const auto t = static_cast<double>(members.size());
    const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
    const double times = call.op.kind == OpKind::AllReduce ? 2.0 : 1.0;
    sum += times * (t - 1) / t * static_cast<double>(bytes.value);
  }
  return Bytes(std::llround(sum));
}

PassFigures pass_figures(const Layout& chosen, const Plan& blocking, const Plan& plan,
                         std::int64_t width) {
  PassFigures f;
  f.forward_chunks = chosen.chunk_overlap.forward;
  f.backward_chunks = chosen.chunk_overlap.backward;
  f.blocking_bytes = tp_bytes(blocking);
  f.bytes = tp_bytes(plan);
  const Compression& c = chosen.compression;
  f.forward_codec = describe(c.forward);
  f.backward_codec = describe(c.backward);
  for (const Codec& codec : {c.forward, c.backward}) {
    const auto error = exchange_error(codec, c.sum, width, chosen.sp);
    f.expected_error = std::max(f.expected_error, error.value_or(0.0));
  }
  return f;
}

void judge(PassFigures& f, const Execution& blocking, const Execution& run) {
  f.blocking_iteration = blocking.iteration;
  f.blocking_exposed = exposed_tp(blocking);
  f.exposed = exposed_tp(run);
  const double speed_up = seconds(blocking.iteration) / seconds(run.iteration);
  if (speed_up > 1.001) {
    f.verdict =
        fmt::format("The passes pay: {:.3f} times as fast as with blocking collectives.", speed_up);
    return;
  }
  const double share = seconds(f.blocking_exposed) / seconds(blocking.iteration);
  const bool little = share < 0.03;
  const bool coded = f.bytes < f.blocking_bytes;
  const bool longer = f.blocking_bytes < f.bytes;
  f.verdict = fmt::format(
      "The passes do not pay ({:.3f} times as fast as with blocking collectives): {}.", speed_up,
      little ? fmt::format("only {:.1f} % of the iteration was exposed communication", share * 100)
      : longer ? "payloads that every rank gathers are longer than the sums they replace"
      : coded  ? "encoding, decoding and exchanges of payloads cost more than shorter messages save"
               : "chunks make kernels less efficient and messages slower than hiding them saves");
}

}  // namespace gputwin
