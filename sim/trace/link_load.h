// Load of links over time, from the flows of a run, in a fixed amount of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/ids.h"
#include "sim/core/topology.h"
#include "sim/core/units.h"
#include "sim/trace/time_windows.h"

namespace gputwin {

/// Bytes that crossed each watched link, in windows of time: a flow is reported when it ends, so a
/// running sum could not be written before all earlier flows have ended. Within a flow the rate is
/// taken as constant.
class LinkLoad {
 public:
  LinkLoad(const Topology& topology, const std::vector<LinkId>& links);

  void add(const Route& route, Bytes bytes, Ps start, Ps end);

  const std::vector<LinkId>& links() const { return links_; }
  Ps width() const { return windows_.width(); }
  /// Bytes per window of links()[row]; empty if nothing crossed the link.
  const std::vector<std::int64_t>& bytes(std::size_t row) const { return windows_.row(row); }

 private:
  std::vector<LinkId> links_;
  std::vector<std::int32_t> row_of_;  // by LinkId; -1: not watched
  TimeWindows windows_;
};

/// Links worth watching when a few GPUs are: their NVLink, PCIe and adapter links, then the
/// fabric's, at most `limit`.
std::vector<LinkId> links_near(const Topology& topology, const std::vector<GpuId>& gpus,
                               std::size_t limit);

}  // namespace gputwin
