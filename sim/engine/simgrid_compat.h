// The differences between SimGrid 3.32 and 4.x that the executor meets. Includes SimGrid: only
// files named simgrid_* may include this one.
#pragma once

#include <simgrid/s4u.hpp>

#include <simgrid/version.h>  // needs what s4u.hpp defines

#include <simgrid/kernel/resource/Model.hpp>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <string>

namespace gputwin::engine::compat {

namespace s4u = simgrid::s4u;

#if SIMGRID_VERSION >= 33700
inline s4u::Host* add_host(s4u::NetZone* zone, const std::string& name) {
  return zone->add_host(name, 1e9);
}
inline s4u::Link* add_link(s4u::NetZone* zone, const std::string& name, double bandwidth) {
  return zone->add_link(name, bandwidth);
}
#else
inline s4u::Host* add_host(s4u::NetZone* zone, const std::string& name) {
  return zone->create_host(name, 1e9);
}
inline s4u::Link* add_link(s4u::NetZone* zone, const std::string& name, double bandwidth) {
  return zone->create_link(name, bandwidth);
}
#endif

/// Names of the precision settings (3.34 renamed them).
#if SIMGRID_VERSION >= 33400
inline constexpr const char* kTimePrecision = "precision/timing:1e-12";
inline constexpr const char* kWorkPrecision = "precision/work-amount:1e-9";
inline constexpr const char* kTcpGamma = "network/TCP-gamma:0";
#else
inline constexpr const char* kTimePrecision = "surf/precision:1e-12";
inline constexpr const char* kWorkPrecision = "maxmin/precision:1e-9";
inline constexpr const char* kTcpGamma = "network/TCP-gamma:1e30";
#endif

/// Calls `done(comm)` whenever a Comm ends. One signal serves all activities before 3.34.
template <class Done>
void on_comm_completion(Done done) {
#if SIMGRID_VERSION >= 33400
  s4u::Comm::on_completion_cb(
      [done](const s4u::Comm& comm) { done(const_cast<s4u::Comm*>(&comm)); });
#else
  s4u::Activity::on_completion_cb([done](const s4u::Activity& activity) {
    done(static_cast<s4u::Comm*>(const_cast<s4u::Activity*>(&activity)));
  });
#endif
}

/// Starts a Comm whose ends and size are set. Up to 3.33 setting the last of them started it.
inline void start(const s4u::CommPtr& comm) {
#if SIMGRID_VERSION >= 33400
  if (comm->get_state() != s4u::Activity::State::STARTED) comm->start();
#else
  static_cast<void>(comm);
#endif
}

}  // namespace gputwin::engine::compat
