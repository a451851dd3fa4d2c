#include "sim/engine/transfer_table.h"

#include <algorithm>
#include <cmath>

#include "sim/core/check.h"
#include "sim/engine/jitter.h"

namespace gputwin::engine {

std::size_t TransferTable::KeyHash::operator()(const Key& k) const {
  const auto op = static_cast<std::uint64_t>(k.op);
  return splitmix64(splitmix64(k.place ^ (op << 56)) ^ static_cast<std::uint64_t>(k.bytes));
}

TransferTable::TransferTable(const Plan& plan, const CostModel& costs, const Topology& topology,
                             const Folding& folding)
    : plan_(plan), costs_(costs), topology_(topology), folding_(folding) {
  const std::size_t links = topology.links().size();
  for (std::size_t l = 0; l < links; ++l) {
    capacity_.push_back(topology.links()[l].capacity.value / folding.link_flows[l]);
  }
  user_.assign(links, kNoRow);
  share_.resize(links);
  communicator_channel_.assign(plan.communicators.size(), kNoRow);
}

std::vector<Binding> TransferTable::bind(RankId rank, const CompiledProgram& program) {
  std::vector<Binding> bindings;
  for (const Site& site : program.sites) {
    Binding binding;
    if (site.kind == Kind::Copy) {
      const auto way = static_cast<std::uint64_t>(site.copy) + 1;
      binding.channel = pair_channel((way << 60) | rank.value, rank, rank);
      binding.pattern = copy_pattern(binding.channel, rank, site);
    } else if (site.kind == Kind::Collective) {
      const CommunicatorId c = plan_.communicator(rank, site.slot);
      binding.channel = communicator_channel(folding_.communicator[c.value]);
      binding.pattern = collective_pattern(binding.channel, site.op, site.bytes);
    } else {
      const RankId peer = plan_.peer(rank, site.slot);
      const RankId stands_for = folding_.representative[peer.value];
      const RankId from = site.kind == Kind::Send ? rank : stands_for;
      const RankId to = site.kind == Kind::Send ? stands_for : rank;
      const std::uint64_t key = (std::uint64_t{from.value} << 30) | to.value;
      binding.channel = pair_channel(key, from, to);
      if (site.kind == Kind::Send) {
        binding.pattern = send_pattern(binding.channel, rank, peer, site.bytes);
      }
    }
    note_stream(binding.channel, rank, site);
    bindings.push_back(binding);
  }
  return bindings;
}

/// A channel's transfers follow each other if every rank starts them from one stream.
void TransferTable::note_stream(std::uint32_t channel, RankId rank, const Site& site) {
  std::uint64_t side = (std::uint64_t{channel} << 32) | (rank.value << 1);
  if (site.kind == Kind::Recv) side |= 1;
  const auto [it, first] = stream_used_.emplace(side, site.stream);
  if (it->second != site.stream || site.in_group_with_itself) overlaps_itself_[channel] = true;
}

std::uint32_t TransferTable::communicator_channel(CommunicatorId communicator) {
  std::uint32_t& channel = communicator_channel_[communicator.value];
  if (channel != kNoRow) return channel;
  channel = static_cast<std::uint32_t>(channels_.size());
  Channel made;
  made.communicator = communicator;
  made.participants = static_cast<std::uint32_t>(folding_.participants[communicator.value].size());
  channels_.push_back(made);
  overlaps_itself_.push_back(false);
  return channel;
}

std::uint32_t TransferTable::pair_channel(std::uint64_t key, RankId from, RankId to) {
  const auto next = static_cast<std::uint32_t>(channels_.size());
  const auto [it, made] = pair_channel_.emplace(key, next);
  if (!made) return it->second;
  Channel channel;
  channel.participants = 2;
  channel.from = from;
  channel.to = to;
  channels_.push_back(channel);
  overlaps_itself_.push_back(false);
  return next;
}

std::uint32_t TransferTable::collective_pattern(std::uint32_t channel, OpKind op, Bytes bytes) {
  const Key key{channel, op, bytes.value};
  if (const auto it = pattern_of_.find(key); it != pattern_of_.end()) return it->second;
  const std::vector<RankId>& members =
      plan_.communicators[channels_[channel].communicator.value].members;
  std::vector<GpuId> gpus;
  for (const RankId member : members) gpus.push_back(plan_.ranks[member.value].gpu);
  const std::uint32_t p = add_pattern(channel, costs_.collective(op, bytes, gpus), members);
  pattern_of_.emplace(key, p);
  return p;
}

std::uint32_t TransferTable::send_pattern(std::uint32_t channel, RankId from, RankId to,
                                          Bytes bytes) {
  const Key key{channel, OpKind::SendTo, bytes.value};
  if (const auto it = pattern_of_.find(key); it != pattern_of_.end()) return it->second;
  const std::vector<RankId> members{from, to};
  const std::vector<GpuId> gpus{plan_.ranks[from.value].gpu, plan_.ranks[to.value].gpu};
  const std::uint32_t p =
      add_pattern(channel, costs_.collective(OpKind::SendTo, bytes, gpus), members);
  pattern_of_.emplace(key, p);
  return p;
}

std::uint32_t TransferTable::add_pattern(std::uint32_t channel, const CollectiveSchedule& schedule,
                                         const std::vector<RankId>& members) {
  Pattern pattern;
  pattern.first_flow = static_cast<std::uint32_t>(flows_.size());
  pattern.rate_cap = schedule.rate_cap.value;
  for (const FlowEdge& edge : schedule.edges) {
    if (edge.bytes.value == 0) continue;
    const RankId from = members[edge.from], to = members[edge.to];
    const Route route = topology_.route(plan_.ranks[from.value].gpu, plan_.ranks[to.value].gpu);
    add_flow(from, to, edge.bytes, route, pattern);
  }
  share_links(pattern, schedule.latency);
  channel_of_pattern_.push_back(channel);
  patterns_.push_back(pattern);
  return static_cast<std::uint32_t>(patterns_.size() - 1);
}

/// A copy waits for its start-up and then moves at its own rate, or at the slowest link's.
std::uint32_t TransferTable::copy_pattern(std::uint32_t channel, RankId rank, const Site& site) {
  const Key key{(std::uint64_t{channel} << 1) | (site.pinned ? 1 : 0), OpKind::CopyBytes,
                site.bytes.value};
  if (const auto it = pattern_of_.find(key); it != pattern_of_.end()) return it->second;
  const GpuId gpu = plan_.ranks[rank.value].gpu;
  const Cost cost = costs_.copy(site.copy, site.bytes, site.pinned, gpu);
  const Seconds start_up = cost.term(Term::StartUp);
  const Seconds moving = cost.time - start_up;
  Pattern pattern;
  pattern.first_flow = static_cast<std::uint32_t>(flows_.size());
  if (moving.value > 0) pattern.rate_cap = static_cast<double>(site.bytes.value) / moving.value;
  add_flow(rank, rank, site.bytes, topology_.copy_route(gpu, site.copy), pattern);
  share_links(pattern, start_up);
  channel_of_pattern_.push_back(channel);
  patterns_.push_back(pattern);
  const auto p = static_cast<std::uint32_t>(patterns_.size() - 1);
  copies_.emplace(p, site.copy);
  pattern_of_.emplace(key, p);
  return p;
}

/// Adds a flow over the classes of its links. Of folded flows with one path, one stands for all.
void TransferTable::add_flow(RankId from, RankId to, Bytes bytes, const Route& route,
                             Pattern& pattern) {
  PatternFlow flow{from, to, bytes, 0, 0, static_cast<std::uint32_t>(links_.size()), route.count};
  for (const LinkId link : route) links_.push_back(folding_.link[link.value]);
  if (folding_.folded) {
    if (pattern.flows == 0) flow_of_path_.clear();
    const std::span<const LinkId> path = links(flow);
    std::vector<std::uint32_t> key;
    for (const LinkId link : path) key.push_back(link.value);
    const auto [it, fresh] =
        flow_of_path_.emplace(std::move(key), static_cast<std::uint32_t>(flows_.size()));
    if (!fresh) {
      links_.resize(flow.first_link);
      flows_[it->second].bytes = std::max(flows_[it->second].bytes, bytes);
      return;
    }
  }
  flows_.push_back(flow);
  ++pattern.flows;
}

/// Works out the rates of the flows when nothing else uses their links, and how long they take.
void TransferTable::share_links(Pattern& pattern, Seconds latency) {
  for (const PatternFlow& flow : flows(pattern)) {
    for (const LinkId link : links(flow)) {
      LinkShare& share = share_[link.value];
      share.bytes += flow.bytes.value;
      if (++share.flows > 1) pattern.disjoint = false;
    }
  }
  const double slowest = rates(pattern);
  pattern.exact = rates_are_final(pattern);
  pattern.latency = to_ps(latency);
  pattern.moving = to_ps(latency + Seconds(slowest)) - pattern.latency;
  for (std::uint32_t f = pattern.first_flow; f < pattern.first_flow + pattern.flows; ++f) {
    flows_[f].alone = std::min(flows_[f].alone, pattern.moving);
    for (const LinkId link : links(flows_[f])) share_[link.value] = LinkShare{};
  }
}

/// Gives each flow an equal part of its narrowest link. Returns the seconds until all bytes are
/// through the slowest link or flow: the closed form of cost.h.
double TransferTable::rates(const Pattern& pattern) {
  double slowest = 0;
  for (std::uint32_t f = pattern.first_flow; f < pattern.first_flow + pattern.flows; ++f) {
    PatternFlow& flow = flows_[f];
    const auto bytes = static_cast<double>(flow.bytes.value);
    flow.rate = pattern.rate_cap;
    if (pattern.rate_cap > 0) slowest = std::max(slowest, bytes / pattern.rate_cap);
    for (const LinkId link : links(flow)) {
      const LinkShare& share = share_[link.value];
      const double part = capacity_[link.value] / share.flows;
      flow.rate = flow.rate > 0 ? std::min(flow.rate, part) : part;
      slowest = std::max(slowest, static_cast<double>(share.bytes) / capacity_[link.value]);
    }
    flow.alone = flow.rate > 0 ? to_ps(Seconds(bytes / flow.rate)) : 0;
    for (const LinkId link : links(flow)) share_[link.value].rate += flow.rate;
  }
  return slowest;
}

/// True if the rates are the max-min ones (every flow is held back by a full link or its own cap)
/// and stay so (flows that meet on a link end together).
bool TransferTable::rates_are_final(const Pattern& pattern) const {
  constexpr double kFull = 1 - 1e-9;
  std::unordered_map<std::uint32_t, Ps> end_on_link;  // only looked up, never iterated
  for (const PatternFlow& flow : flows(pattern)) {
    bool held = flow.links == 0 || flow.rate == pattern.rate_cap;
    for (const LinkId link : links(flow)) {
      const LinkShare& share = share_[link.value];
      held = held || share.rate >= capacity_[link.value] * kFull;
      if (share.flows < 2) continue;
      const auto [it, first] = end_on_link.emplace(link.value, flow.alone);
      if (std::abs(it->second - flow.alone) > 1) return false;
    }
    if (!held) return false;
  }
  return true;
}

/// A scalar summed over a whole cluster is thousands of flows that fit between two packets of any
/// other transfer. Taking them as alone is off by at most their own moving time per flow they meet.
constexpr std::uint32_t kManyFlows = 1'000;
constexpr Ps kNoTime = 10'000;  // 10 ns

void TransferTable::finish() {
  for (std::size_t p = 0; p < patterns_.size(); ++p) {
    const std::uint32_t channel = channel_of_pattern_[p];
    for (const PatternFlow& flow : flows(patterns_[p])) {
      for (const LinkId link : links(flow)) {
        std::uint32_t& user = user_[link.value];
        const bool alone = !overlaps_itself_[channel] && (user == kNoRow || user == channel);
        user = alone ? channel : kMany;
      }
    }
  }
  for (Pattern& pattern : patterns_) {
    for (const PatternFlow& flow : flows(pattern)) {
      for (const LinkId link : links(flow)) pattern.exclusive &= !shared(link);
    }
    // Where the closed form is not the truth SimGrid has to share the links.
    pattern.exclusive &= pattern.exact;
    pattern.exclusive |= pattern.flows > kManyFlows && pattern.moving < kNoTime;
  }
  stream_used_.clear();
  pattern_of_.clear();
  pair_channel_.clear();
}

Route TransferTable::route(std::uint32_t pattern, const PatternFlow& flow) const {
  const GpuId from = plan_.ranks[flow.from.value].gpu;
  if (const auto copy = copies_.find(pattern); copy != copies_.end()) {
    return topology_.copy_route(from, copy->second);
  }
  return topology_.route(from, plan_.ranks[flow.to.value].gpu);
}

}  // namespace gputwin::engine
