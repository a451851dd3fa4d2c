// Buffers of a pre-allocated arena: each has a fixed address, and a counter that tells when it is
// in use. A counter is how a Store keeps them, so figures of slices know nothing of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/plan.h"
#include "sim/trace/store.h"

namespace gputwin {

/// One buffer of an arena, bytes [address, address + bytes).
struct PlacedBlock {
  std::int64_t address = 0, bytes = 0;
  std::string memory;         // class: "activations"
  std::string name;           // of the buffer
  std::uint32_t counter = 0;  // row of Store::counters: how many instances are live from when on
  bool operator==(const PlacedBlock&) const = default;
};

/// Names of the counters of one arena: "gpu addresses"; and of one buffer:
/// "address=4096 bytes=1024 class=activations name=slot 0".
std::string address_counter(const Arena& arena);
std::string address_series(const Buffer& buffer);
bool is_address_counter(const Counter& counter);

/// Blocks of one arena of a process by address; empty if the run placed none itself. Counters that
/// do not read so are left out.
std::vector<PlacedBlock> placed_blocks(const Store& store, std::uint32_t process,
                                       std::string_view counter_name);

}  // namespace gputwin
