// Load of links over time, from the flows of a run, in a fixed amount of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/ids.h"
#include "sim/core/topology.h"
#include "sim/core/units.h"

namespace gputwin {

/// Bytes that crossed each watched link, in equal windows of time.
///
/// A flow is reported when it ends, so a running sum could not be written before all earlier flows
/// have ended. Windows can: there are at most kWindows, and their width doubles whenever a flow
/// ends beyond them. Within a flow the rate is taken as constant.
class LinkLoad {
 public:
  static constexpr std::size_t kWindows = 2048;
  static constexpr Ps kFirstWidth = 1'000'000;  // 1 us

  LinkLoad(const Topology& topology, const std::vector<LinkId>& links);

  void add(const Route& route, Bytes bytes, Ps start, Ps end);

  const std::vector<LinkId>& links() const { return links_; }
  Ps width() const { return width_; }
  /// Bytes per window of links()[row]; empty if nothing crossed the link.
  const std::vector<std::int64_t>& bytes(std::size_t row) const { return rows_[row]; }

 private:
  void widen(Ps end);
  void add(std::vector<std::int64_t>& row, std::int64_t bytes, Ps start, Ps end) const;

  std::vector<LinkId> links_;
  std::vector<std::int32_t> row_of_;  // by LinkId; -1: not watched
  std::vector<std::vector<std::int64_t>> rows_;
  Ps width_ = kFirstWidth;
};

/// Links worth watching when a few GPUs are: their NVLink, PCIe and adapter links, then the
/// fabric's, at most `limit`.
std::vector<LinkId> links_near(const Topology& topology, const std::vector<GpuId>& gpus,
                               std::size_t limit);

}  // namespace gputwin
