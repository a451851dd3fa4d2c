// What the transfers of a plan put on the links: every communicator and pair of ranks as a channel,
// every distinct (channel, kind, bytes) as a pattern of flows with rates, times and links, computed
// once.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/topology.h"
#include "sim/engine/compiled_program.h"
#include "sim/engine/fold.h"

namespace gputwin::engine {

/// One flow of a pattern. `alone`: its time at `rate`, when nothing outside the pattern uses its
/// links.
struct PatternFlow {
  RankId from, to;
  Bytes bytes{};
  double rate = 0;  // bytes per second
  Ps alone = 0;
  std::uint32_t first_link = 0, links = 0;
};

struct Pattern {
  Ps latency = 0;  // before the flows start
  Ps moving = 0;   // from their start to the end of the last, alone on the links
  double rate_cap = 0;
  std::uint32_t first_flow = 0, flows = 0;
  bool exact = true;      // the rates are the max-min ones until the end, so `alone` holds
  bool disjoint = true;   // no link carries two of its flows
  bool exclusive = true;  // no link is ever used by anything else at the same time
};

/// Where transfers are matched by sequence number: a communicator, or an ordered pair of ranks. The
/// copies of one rank in one direction also make a channel, though nobody has to be met.
struct Channel {
  std::uint32_t participants = 0;  // simulated ranks that meet
  CommunicatorId communicator{};   // none for a pair
  RankId from{}, to{};             // of a pair
  std::uint32_t open = kNoRow;     // first meeting that waits for participants
};

/// What a site of a program means for one rank.
struct Binding {
  std::uint32_t channel = kNoRow;
  std::uint32_t pattern = kNoRow;  // none for a Recv: its Send knows
};

class TransferTable {
 public:
  TransferTable(const Plan& plan, const CostModel& costs, const Topology& topology,
                const Folding& folding);

  /// Bindings of one rank, by site of its program. Channels and patterns are made as they are first
  /// met.
  std::vector<Binding> bind(RankId rank, const CompiledProgram& program);
  /// Call after the last bind: finds the links that more than one channel uses.
  void finish();

  std::vector<Channel>& channels() { return channels_; }
  const std::vector<Channel>& channels() const { return channels_; }
  const Pattern& pattern(std::uint32_t p) const { return patterns_[p]; }
  std::span<const PatternFlow> flows(const Pattern& p) const {
    return {flows_.data() + p.first_flow, p.flows};
  }
  std::span<const LinkId> links(const PatternFlow& f) const {
    return {links_.data() + f.first_link, f.links};
  }
  bool shared(LinkId link) const { return user_[link.value] == kMany; }
  double capacity(LinkId link) const { return capacity_[link.value]; }
  std::size_t links() const { return capacity_.size(); }
  Route route(std::uint32_t pattern, const PatternFlow& flow) const;

 private:
  static constexpr std::uint32_t kMany = 0xfffffffeu;
  struct Key {
    std::uint64_t place;  // channel, or GPU and way of a copy
    OpKind op;
    std::int64_t bytes;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& k) const;
  };

  std::uint32_t communicator_channel(CommunicatorId communicator);
  std::uint32_t pair_channel(std::uint64_t key, RankId from, RankId to);
  std::uint32_t collective_pattern(std::uint32_t channel, OpKind op, Bytes bytes);
  std::uint32_t send_pattern(std::uint32_t channel, RankId from, RankId to, Bytes bytes);
  std::uint32_t copy_pattern(std::uint32_t channel, RankId rank, const Site& site);
  std::uint32_t add_pattern(std::uint32_t channel, const CollectiveSchedule& schedule,
                            const std::vector<RankId>& members);
  void add_flow(RankId from, RankId to, Bytes bytes, const Route& route, Pattern& pattern);
  void share_links(Pattern& pattern, Seconds latency);
  double rates(const Pattern& pattern);
  bool rates_are_final(const Pattern& pattern) const;
  void note_stream(std::uint32_t channel, RankId rank, const Site& site);

  const Plan& plan_;
  const CostModel& costs_;
  const Topology& topology_;
  const Folding& folding_;
  std::vector<double> capacity_;     // by link, bytes per second
  std::vector<std::uint32_t> user_;  // by link: the channel that uses it, kNoRow or kMany
  std::vector<Channel> channels_;
  std::vector<bool> overlaps_itself_;  // by channel: several of its transfers may run at once
  std::vector<std::uint32_t> communicator_channel_;
  std::unordered_map<std::uint64_t, std::uint32_t> pair_channel_;
  std::unordered_map<Key, std::uint32_t, KeyHash> pattern_of_;
  std::vector<Pattern> patterns_;
  std::vector<std::uint32_t> channel_of_pattern_;
  std::vector<PatternFlow> flows_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> flow_of_path_;  // of the pattern being made
  std::vector<LinkId> links_;
  std::unordered_map<std::uint32_t, CopyKind> copies_;           // by pattern
  std::unordered_map<std::uint64_t, std::uint8_t> stream_used_;  // by channel and rank
  struct LinkShare {
    std::int64_t bytes = 0;
    double rate = 0;
    std::uint32_t flows = 0;
    Ps alone = -1;
  };
  std::vector<LinkShare> share_;  // by link, scratch
};

}  // namespace gputwin::engine
