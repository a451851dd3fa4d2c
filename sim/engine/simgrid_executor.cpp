#include "sim/engine/simgrid_executor.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/check.h"
#include "sim/engine/fold.h"
#include "sim/engine/simgrid_compat.h"
#include "sim/engine/stream_core.h"

namespace gputwin {
namespace {

namespace s4u = simgrid::s4u;
namespace routing = simgrid::kernel::routing;
using engine::SharedFlow;
using engine::StreamCore;

/// A zone whose only route is the one of the flow about to start: Topology computes routes, SimGrid
/// is handed the links. So two hosts do for a cluster of any size, and a link exists only once a
/// flow shares it.
class RouteZone final : public routing::NetZoneImpl {
 public:
  explicit RouteZone(const std::string& name) : NetZoneImpl(name) {}
  std::vector<s4u::Link*> route;

  void get_local_route(const routing::NetPoint*, const routing::NetPoint*, routing::Route* into,
                       double*) override {
    for (s4u::Link* link : route) into->link_list_.push_back(link->get_impl());
  }
  void get_graph(const s_xbt_graph_t*, std::map<std::string, xbt_node_t, std::less<>>*,
                 std::map<std::string, xbt_edge_t, std::less<>>*) override {}
};

/// The engine of the process, its network, and the stream core as a kernel model beside it.
class Simulation final {
 public:
  static Simulation& of_this_process() {
    static Simulation* simulation = new Simulation;  // SimGrid tears itself down at exit
    return *simulation;
  }

  /// Drives `core` until nothing more happens. Rethrows what a callback threw.
  void run(StreamCore& core);

 private:
  class CoreModel final : public simgrid::kernel::resource::Model {
   public:
    explicit CoreModel(Simulation& simulation) : Model("gputwin"), simulation_(simulation) {}
    double next_occurring_event(double now) override { return simulation_.next_event(now); }
    void update_actions_state(double now, double) override { simulation_.clock_at(now); }

   private:
    Simulation& simulation_;
  };

  Simulation();
  double next_event(double now);
  void clock_at(double now);
  void comm_ended(s4u::Comm* comm);
  void start_flows();
  void start_flow(const SharedFlow& flow);
  void take_back_lone_flows();
  s4u::Link* link(LinkId id);
  s4u::Link* take_cap(double rate);
  s4u::Link* make_link(double bytes_per_second);
  template <class Function>
  void guarded(Function function);
  Ps to_core(double now) const { return std::llround((now - origin_) * kPsPerSecond); }

  /// SimGrid counts whole bytes; in units of 1/1024 byte the rounding stays below 1e-14 s.
  static constexpr double kUnitsPerByte = 1024;

  s4u::Engine* engine_;
  RouteZone* zone_;
  RouteZone* links_zone_ = nullptr;  // links of one run, made when a flow first shares them
  s4u::Host *from_, *to_;
  simgrid::kernel::resource::Model* network_ = nullptr;
  StreamCore* core_ = nullptr;
  double origin_ = 0;  // SimGrid's clock at the start of the run
  int zones_made_ = 0, links_made_ = 0;
  std::vector<s4u::Link*> link_;                         // by LinkId
  std::map<double, std::vector<s4u::Link*>> free_caps_;  // by rate: caps no flow uses
  struct InFlight {
    s4u::CommPtr comm;
    std::uint64_t flow;
    s4u::Link* cap;  // null: not capped
    double rate_cap;
  };
  std::unordered_map<const s4u::Comm*, InFlight> in_flight_;  // only looked up, never iterated
  std::unordered_map<std::uint64_t, s4u::Comm*> comm_of_flow_;
  s4u::CommPtr last_ended_;  // SimGrid must not lose a Comm inside its own completion callback
  std::vector<s4u::CommPtr> taken_back_, taken_back_earlier_;  // nor a cancelled one in this step
  std::exception_ptr failure_;
};

Simulation::Simulation() {
  xbt_log_control_set("root.thres:critical");
  engine_ = new s4u::Engine(std::string("gputwin"));
  for (const char* setting :
       {"network/model:CM02", "network/crosstraffic:0", engine::compat::kTcpGamma,
        engine::compat::kTimePrecision, engine::compat::kWorkPrecision}) {
    s4u::Engine::set_config(setting);
  }
  zone_ = new RouteZone("fabric");
#if SIMGRID_VERSION >= 33700
  zone_->set_parent(engine_->get_netzone_root()->get_impl());
#endif
  from_ = engine::compat::add_host(zone_->get_iface(), "from");
  to_ = engine::compat::add_host(zone_->get_iface(), "to");
  zone_->get_iface()->seal();
  for (simgrid::kernel::resource::Model* model : engine_->get_all_models()) {
    if (model->get_name().find("Network") == 0) network_ = model;
  }
  GPUTWIN_CHECK(network_ != nullptr, "SimGrid has a network model");
  engine_->add_model(std::make_shared<CoreModel>(*this));
  engine::compat::on_comm_completion([this](s4u::Comm* comm) { comm_ended(comm); });
}

void Simulation::run(StreamCore& core) {
  core_ = &core;
  failure_ = nullptr;
  origin_ = s4u::Engine::get_clock();
  link_.assign(core.transfers().links(), nullptr);
  free_caps_.clear();
  // Links can only be added to a zone that is not sealed yet, and links of an earlier run may have
  // had other capacities, so every run has a zone for its links.
  links_zone_ = new RouteZone("links" + std::to_string(zones_made_++));
  links_zone_->set_network_model(zone_->get_network_model());
  core.begin();
  engine_->run();
  core_ = nullptr;
  last_ended_ = nullptr;
  if (failure_) std::rethrow_exception(failure_);
  GPUTWIN_CHECK(in_flight_.empty(), "SimGrid ends every flow it was given");
}

/// Exceptions must not pass through SimGrid's frames: the first is kept, and the run comes to its
/// end.
template <class Function>
void Simulation::guarded(Function function) {
  if (core_ == nullptr || failure_) return;
  try {
    function();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

/// SimGrid asks when something happens next, as a delay; -1: never. The core may go on up to the
/// next end of a flow, since nothing else can surprise it before.
double Simulation::next_event(double now) {
  double delay = -1;
  guarded([&] {
    if (core_->stopped()) return;
    take_back_lone_flows();
    Ps horizon = std::numeric_limits<Ps>::max();
    if (!in_flight_.empty()) {
      const double network = network_->next_occurring_event(now);
      if (network >= 0) horizon = to_core(now + network);
    }
    const std::optional<Ps> next = core_->advance(horizon);
    if (!next || core_->stopped()) return;
    const double at = origin_ + static_cast<double>(*next) / kPsPerSecond;
    delay = std::max(0.0, at - now);
  });
  return delay;
}

void Simulation::clock_at(double now) {
  guarded([&] {
    if (core_->stopped()) return;
    core_->at(to_core(now));
    start_flows();
  });
}

void Simulation::comm_ended(s4u::Comm* comm) {
  const auto it = in_flight_.find(comm);
  if (it == in_flight_.end()) return;
  const std::uint64_t flow = it->second.flow;
  last_ended_ = std::move(it->second.comm);
  if (it->second.cap != nullptr) free_caps_[it->second.rate_cap].push_back(it->second.cap);
  in_flight_.erase(it);
  comm_of_flow_.erase(flow);
  guarded([&] {
    if (core_->stopped()) return;
    core_->flow_done(flow, to_core(s4u::Engine::get_clock()));
    start_flows();
  });
}

/// Flows that are alone again need no sharing; SimGrid's cost grows with the flows it holds.
void Simulation::take_back_lone_flows() {
  taken_back_earlier_.clear();
  std::swap(taken_back_, taken_back_earlier_);
  const Ps now = to_core(s4u::Engine::get_clock());
  std::vector<std::uint64_t>& flows = core_->alone_again();
  for (std::size_t i = 0; i < flows.size(); ++i) {  // one that leaves may leave another alone
    const auto it = comm_of_flow_.find(flows[i]);
    if (it == comm_of_flow_.end()) continue;
    s4u::Comm* const comm = it->second;
    if (!core_->flow_alone(flows[i], comm->get_remaining() / kUnitsPerByte, now)) continue;
    const auto held = in_flight_.find(comm);
    if (held->second.cap != nullptr) free_caps_[held->second.rate_cap].push_back(held->second.cap);
    taken_back_.push_back(std::move(held->second.comm));
    in_flight_.erase(held);
    comm_of_flow_.erase(it);
    comm->cancel();
  }
  flows.clear();
}

void Simulation::start_flows() {
  std::vector<SharedFlow>& flows = core_->started();
  for (const SharedFlow& flow : flows) start_flow(flow);
  flows.clear();
}

void Simulation::start_flow(const SharedFlow& flow) {
  zone_->route.clear();
  double narrowest = std::numeric_limits<double>::infinity();
  for (const LinkId id : flow.links) {
    zone_->route.push_back(link(id));
    narrowest = std::min(narrowest, core_->transfers().capacity(id));
  }
  const bool capped = flow.rate_cap > 0 && flow.rate_cap < narrowest;
  s4u::Link* const cap = capped ? take_cap(flow.rate_cap) : nullptr;
  if (cap != nullptr) zone_->route.push_back(cap);
  const double units = std::max(1.0, std::round(flow.bytes * kUnitsPerByte));
  s4u::CommPtr comm = s4u::Comm::sendto_init();
  const s4u::Comm* key = comm.get();
  in_flight_[key] = {comm, flow.id, cap, flow.rate_cap};
  comm_of_flow_[flow.id] = comm.get();
  comm->set_payload_size(static_cast<std::uint64_t>(units));
  comm->set_source(from_);
  comm->set_destination(to_);
  engine::compat::start(comm);
}

s4u::Link* Simulation::link(LinkId id) {
  s4u::Link*& made = link_[id.value];
  if (made == nullptr) made = make_link(core_->transfers().capacity(id));
  return made;
}

/// A link that limits one flow (Comm::set_rate has no effect on these flows in 3.32). Each flow has
/// its own: SimGrid solves flows that meet on any link together, even on one that does not bind.
s4u::Link* Simulation::take_cap(double rate) {
  std::vector<s4u::Link*>& free = free_caps_[rate];
  if (free.empty()) {
    free.push_back(make_link(rate));
    free.back()->set_sharing_policy(s4u::Link::SharingPolicy::FATPIPE);
  }
  s4u::Link* const cap = free.back();
  free.pop_back();
  return cap;
}

s4u::Link* Simulation::make_link(double bytes_per_second) {
  s4u::Link* made =
      engine::compat::add_link(links_zone_->get_iface(), "l" + std::to_string(links_made_++),
                               bytes_per_second * kUnitsPerByte);
  made->set_latency(0);
  made->seal();
  return made;
}

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace

ExecutionOutcome SimgridExecutor::run(const Plan& plan, const CostModel& costs,
                                      const Topology& topology, const RunOptions& options,
                                      EventSink* sink) {
  const auto began = std::chrono::steady_clock::now();
  const Folding folding =
      options.fold == Fold::Auto ? fold(plan, topology, costs) : identity_folding(plan, topology);
  StreamCore core(plan, costs, topology, folding, options, sink);
  Simulation::of_this_process().run(core);
  if (core.cancelled()) return Cancelled{};
  if (!core.complete()) return core.deadlock();
  Execution result = core.result(plan, folding);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
  result.engine.wall_s = spent.count();
  result.engine.peak_rss_bytes = peak_rss_bytes();
  return result;
}

}  // namespace gputwin
