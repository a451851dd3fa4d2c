// Dense indices into the tables of a Plan or a Cluster, one type per table so that they cannot be
// mixed up.
#pragma once

#include <compare>
#include <cstdint>

namespace gputwin {

/// Index of one row of a table. A default-constructed id names no row.
template <class Tag>
struct Id {
  static constexpr std::uint32_t kNone = 0xffffffffu;
  std::uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : value(v) {}
  constexpr bool valid() const { return value != kNone; }
  constexpr auto operator<=>(const Id&) const = default;
};

using GpuId = Id<struct GpuTag>;    // a GPU of the cluster: node by node, then inner index
using NodeId = Id<struct NodeTag>;  // a node of the cluster
using LinkId = Id<struct LinkTag>;  // one direction of a link of the Topology
using DeviceKindId = Id<struct DeviceKindTag>;      // row of Cluster::device_kinds
using RankId = Id<struct RankTag>;                  // a training process; runs on one GPU
using ProgramId = Id<struct ProgramTag>;            // row of Plan::programs
using CommunicatorId = Id<struct CommunicatorTag>;  // row of Plan::communicators
using CallId = Id<struct CallTag>;                  // row of Plan::calls
using NameId = Id<struct NameTag>;                  // row of Plan::names
using BufferId = Id<struct BufferTag>;              // row of Plan::buffers
using EventId = Id<struct EventTag>;                // an event of one program
using ArenaId = Id<struct ArenaTag>;                // row of Plan::arenas
using SlotId = Id<struct SlotTag>;                  // a communicator or peer slot of one program

}  // namespace gputwin
