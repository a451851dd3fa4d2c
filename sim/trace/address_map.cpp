#include "sim/trace/address_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <tuple>

#include "sim/core/spelling.h"

namespace gputwin {

namespace {

constexpr std::string_view kEnding = " addresses";

/// Takes `key` and what stands behind it, up to the next space, off the front of `rest`.
std::optional<std::string_view> word(std::string_view& rest, std::string_view key) {
  if (!rest.starts_with(key)) return std::nullopt;
  rest.remove_prefix(key.size());
  const std::size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view found = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return found;
}

std::optional<std::int64_t> number(std::optional<std::string_view> digits) {
  std::int64_t value = 0;
  if (!digits) return std::nullopt;
  const auto [end, error] = std::from_chars(digits->begin(), digits->end(), value);
  if (error != std::errc() || end != digits->end() || value < 0) return std::nullopt;
  return value;
}

std::optional<PlacedBlock> block_of(std::string_view series) {
  const auto address = number(word(series, "address="));
  const auto bytes = number(word(series, "bytes="));
  const auto memory = word(series, "class=");
  constexpr std::string_view kName = "name=";
  if (!address || !bytes || !memory || !series.starts_with(kName)) return std::nullopt;
  if (*address > std::numeric_limits<std::int64_t>::max() - *bytes) return std::nullopt;
  series.remove_prefix(kName.size());
  return PlacedBlock{*address, *bytes, std::string(*memory), std::string(series), 0};
}

}  // namespace

std::string address_counter(const Arena& arena) { return arena.name + std::string(kEnding); }

std::string address_series(const Buffer& buffer) {
  return fmt::format("address={} bytes={} class={} name={}", buffer.address, buffer.bytes.value,
                     to_string(buffer.memory), buffer.name);
}

bool is_address_counter(const Counter& counter) {
  return counter.name.ends_with(kEnding) && counter.series.starts_with("address=");
}

std::vector<PlacedBlock> placed_blocks(const Store& store, std::uint32_t process,
                                       std::string_view counter_name) {
  std::vector<PlacedBlock> blocks;
  for (std::uint32_t c = 0; c < store.counters.size(); ++c) {
    const Counter& counter = store.counters[c];
    if (counter.process != process || counter.name != counter_name) continue;
    if (auto block = block_of(counter.series)) {
      block->counter = c;
      blocks.push_back(std::move(*block));
    }
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const PlacedBlock& a, const PlacedBlock& b) {
    return std::tie(a.address, a.bytes) < std::tie(b.address, b.bytes);
  });
  return blocks;
}

}  // namespace gputwin
