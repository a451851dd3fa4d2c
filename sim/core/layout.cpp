#include "sim/core/layout.h"

#include <numeric>

#include "sim/core/check.h"

namespace gputwin {

std::int32_t Layout::ranks() const {
  if (stage_replicas.empty()) return tp * cp * dp * pp;
  return std::accumulate(stage_replicas.begin(), stage_replicas.end(), 0);
}

std::int32_t Layout::shards() const {
  if (zero == 0) return 1;
  return hsdp_group > 0 ? hsdp_group : dp * cp;
}

std::int32_t Layout::degree(Dim d) const {
  switch (d) {
    case Dim::Tp: return tp;
    case Dim::Cp: return cp;
    case Dim::Dp: return dp;
    case Dim::Pp: return pp;
  }
  return 1;
}

namespace {

std::int32_t& at(Coordinates& c, Dim d) {
  switch (d) {
    case Dim::Tp: return c.tp;
    case Dim::Cp: return c.cp;
    case Dim::Dp: return c.dp;
    case Dim::Pp: break;
  }
  return c.pp;
}

}  // namespace

Coordinates Layout::coordinates(RankId rank) const {
  Coordinates c;
  auto rest = static_cast<std::int32_t>(rank.value);
  for (const Dim d : rank_order) {
    at(c, d) = rest % degree(d);
    rest /= degree(d);
  }
  GPUTWIN_CHECK(rest == 0, "a rank lies within the grid of degrees");
  return c;
}

RankId Layout::rank(Coordinates c) const {
  std::int32_t index = 0;
  for (std::size_t i = rank_order.size(); i-- > 0;) {
    index = index * degree(rank_order[i]) + at(c, rank_order[i]);
  }
  return RankId(static_cast<std::uint32_t>(index));
}

std::int32_t Layout::chunk_at(std::int32_t stage, std::int32_t local) const {
  const std::int32_t mirrored = pp - 1 - stage;
  switch (placement(schedule)) {
    case Placement::RoundRobin: return local * pp + stage;
    case Placement::Snake: return local * pp + (local % 2 == 0 ? stage : mirrored);
    case Placement::TwoWay: return local == 0 ? stage : mirrored;
  }
  return stage;
}

std::int32_t Layout::stage_of(std::int32_t chunk, std::int32_t way) const {
  const std::int32_t along = chunk % pp, mirrored = pp - 1 - along;
  switch (placement(schedule)) {
    case Placement::RoundRobin: return along;
    case Placement::Snake: return chunk / pp % 2 == 0 ? along : mirrored;
    case Placement::TwoWay: return way == 0 ? along : mirrored;
  }
  return along;
}

std::int32_t Layout::recomputed_layers(std::int32_t stage) const {
  if (recompute_layers.empty()) return 0;
  return recompute_layers.at(recompute_layers.size() == 1 ? 0 : static_cast<std::size_t>(stage));
}

std::vector<std::int32_t> Layout::layers_per_chunk(std::int64_t model_layers) const {
  if (!stage_layers.empty()) return stage_layers;
  const std::int64_t n = chunks();
  std::vector<std::int32_t> layers(static_cast<std::size_t>(n),
                                   static_cast<std::int32_t>(model_layers / n));
  // The remainder goes to chunks after the first, which carries the embedding; the last, which
  // carries the head, comes last.
  const std::int64_t remainder = model_layers % n;
  for (std::int64_t i = 0; i < remainder; ++i) layers[static_cast<std::size_t>((1 + i) % n)] += 1;
  return layers;
}

}  // namespace gputwin
