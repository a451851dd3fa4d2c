#include "sim/trace/slice_text.h"

#include <fmt/format.h>

#include "sim/core/spelling.h"
#include "sim/trace/json_text.h"

namespace gputwin {

namespace {

std::string_view term_name(Term term) {
  switch (term) {
    case Term::Compute: return "compute_us";
    case Term::Memory: return "memory_us";
    case Term::Wave: return "wave_us";
    case Term::SplitK: return "split_k_us";
    case Term::StartUp: return "start_up_us";
    case Term::Latency: return "latency_us";
    case Term::Bandwidth: return "bandwidth_us";
  }
  return "";
}

/// FLOPs of the matrix multiplications in `op` (2 per multiply-add; half the square where causal).
double matrix_flops(const Op& op) {
  const auto product = [&op](std::initializer_list<std::size_t> dims) {
    double value = 2.0;
    for (const std::size_t d : dims) value *= static_cast<double>(op.dims[d]);
    return value;
  };
  const double attention = product({0, 1, 3, 4, 5}) * (op.causal ? 0.5 : 1.0);
  if (op.kind == OpKind::Gemm) return product({0, 1, 2});
  if (is_attention_gemm(op.kind)) return attention;
  if (op.kind == OpKind::FlashForward) return 2 * attention;
  if (op.kind == OpKind::FlashBackward) return 5 * attention;
  return op.flops.value;
}

Bytes operand_bytes(const Call& call) {
  Bytes total{};
  for (const View& view : call.reads) total += view.bytes();
  for (const View& view : call.writes) total += view.bytes();
  return total;
}

std::string cost_text(const Cost& cost) {
  std::string text = ",\"cost\":{";
  for (std::size_t t = 0; t < kTerms; ++t) {
    if (cost.terms[t].value == 0) continue;
    if (text.back() != '{') text.push_back(',');
    append_string(text, term_name(static_cast<Term>(t)));
    text.push_back(':');
    append_microseconds(text, to_ps(cost.terms[t]));
  }
  if (text.back() != '{') text.push_back(',');
  text += "\"model\":";
  append_string(text, cost.model);
  if (cost.extrapolated) text += ",\"extrapolated\":true";
  return text + "}";
}

}  // namespace

SliceName slice_name(const Plan& plan, const Instruction& instruction) {
  const auto spelled = [&](std::uint32_t frame) {
    Instruction probe = instruction;
    probe.event = frame;
    return plan.full_name(probe);
  };
  SliceName name{{}, {}, spelled(kNoFrame)};
  const std::string framed = spelled(0);
  if (const auto at = framed.find("mb0"); at != std::string::npos) {
    name.before = framed.substr(0, at + 2);
    name.after = framed.substr(at + 3);
  }
  return name;
}

std::string slice_arguments(const Call& call, const Cost* cost) {
  std::string text = "\"op\":";
  append_string(text, to_string(call.op.kind));
  text += ",\"dtype\":";
  append_string(text, to_string(call.op.dtype));
  text += ",\"shape\":\"";
  const std::string_view letters = dimension_letters(call.op.kind);
  for (std::size_t d = 0; d < letters.size(); ++d) {
    if (d > 0) text.push_back(' ');
    text.push_back(letters[d]);
    text.push_back('=');
    append_number(text, call.op.dims[d]);
  }
  text += "\",\"bytes\":";
  append_number(text, operand_bytes(call).value);
  if (const double flops = matrix_flops(call.op); flops > 0)
    text += fmt::format(",\"flops\":{}", flops);
  if (cost != nullptr) text += cost_text(*cost);
  return text;
}

}  // namespace gputwin
