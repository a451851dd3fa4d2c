// Which slices belong to one communication: pairs of Send and Recv, members of one collective.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/core/event_sink.h"

namespace gputwin {

/// From one slice to another; `at` lies inside both.
struct Arrow {
  RankId from, to;
  std::uint8_t from_stream = 0, to_stream = 0;
  Ps at = 0;
};

/// Matches communications as NCCL does, by communicator or ordered pair and sequence number, among
/// a few watched ranks. A send points to its receive; in a collective the member that came last,
/// for whom the others waited, points to each of them.
class FlowArrows {
 public:
  static constexpr std::size_t kPending = 1 << 13;  // communications begun by some of their ranks

  FlowArrows(const Plan& plan, const std::vector<RankId>& watched);

  /// `event` is a communication of a watched rank, at `position` of the prologue followed by the
  /// body. Appends the arrows it completes.
  void add(const OpEvent& event, std::size_t position, std::vector<Arrow>& out);

  /// Communications that found no partner, or were dropped beyond kPending.
  std::int64_t unmatched() const { return dropped_ + static_cast<std::int64_t>(pending_.size()); }

 private:
  struct Key {
    std::uint64_t channel, sequence;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return (key.channel * 0x9e3779b97f4a7c15u) ^ (key.sequence * 0xc2b2ae3d27d4eb4fu);
    }
  };
  struct Side {
    RankId rank;
    std::uint8_t stream;
    bool sends;
    Ps start;
  };
  /// Sequence numbers of one program's communications.
  struct Numbering {
    std::vector<std::uint32_t>
        in_part;  // by position: earlier ones of the same channel in its part
    std::vector<std::uint32_t> channel;   // by position: row of the two below
    std::vector<std::uint32_t> prologue;  // communications in the prologue, by channel
    std::vector<std::uint32_t> body;      // likewise in one body
  };

  static Numbering number(const Plan& plan, const Program& program, const Rank& rank);

  const Plan* plan_;
  std::vector<bool> watched_;           // by rank
  std::vector<Numbering> numberings_;   // by program
  std::vector<std::uint32_t> members_;  // by communicator: watched members
  std::unordered_map<Key, std::vector<Side>, Hash> pending_;
  std::int64_t dropped_ = 0;
};

}  // namespace gputwin
