#include "strategies/offload/estimates.h"

#include <algorithm>

namespace gputwin {
namespace {

constexpr double kBuffer = 1.5;

Bytes whole(double bytes) { return Bytes(static_cast<std::int64_t>(bytes)); }

StateMemory zero2(double p, double gpus, double per_node, bool offload) {
  if (offload) return {whole(2 * p), whole(kBuffer * p * std::max(4 * gpus, 16.0))};
  return {whole(4 * p + 16 * p / gpus), whole(kBuffer * p * 4 * per_node)};
}

}  // namespace

StateMemory zero_states(const ZeroStates& s) {
  const auto p = static_cast<double>(s.parameters);
  const auto layer = static_cast<double>(s.largest_layer);
  const auto gpus = static_cast<double>(s.gpus), nodes = static_cast<double>(s.nodes);
  const double per_node = gpus / nodes;
  if (s.zero == 2) return zero2(p, gpus, per_node, s.optimizer_on_cpu);
  const double gathered = 4 * layer;
  if (s.optimizer_on_cpu && s.params_on_cpu) {
    return {whole(gathered), whole(kBuffer * 18 * p / nodes)};
  }
  if (s.optimizer_on_cpu) return {whole(gathered + 2 * p / gpus), whole(kBuffer * 16 * p / nodes)};
  return {whole(gathered + 18 * p / gpus), whole(kBuffer * 4 * per_node * layer)};
}

}  // namespace gputwin
