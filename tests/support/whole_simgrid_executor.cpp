#include "tests/support/whole_simgrid_executor.h"

#include <xbt/log.h>
#include <simgrid/s4u.hpp>

#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "sim/core/check.h"
#include "sim/engine/jitter.h"

namespace gputwin::test {
namespace {

namespace sg4 = simgrid::s4u;
namespace routing = simgrid::kernel::routing;

constexpr std::size_t kRanks = 16, kLinks = 512, kCaps = 64, kSources = 512;
constexpr double kSlowdowns[] = {1.0, 1.1, 1.2, 1.25, 1.3, 1.5, 2.0};  // one speed each
constexpr double kFlopsPerSecond = 1e12;                               // one flop takes 1 ps

/// A zone whose routes depend on the source alone: each transfer in flight has a source of its own.
class TransferZone final : public routing::NetZoneImpl {
 public:
  explicit TransferZone(const std::string& name) : NetZoneImpl(name) {}
  std::map<const routing::NetPoint*, std::vector<sg4::Link*>> routes;  // never iterated

  void get_local_route(const routing::NetPoint* source, const routing::NetPoint*,
                       routing::Route* into, double*) override {
    for (const sg4::Link* link : routes[source]) into->link_list_.push_back(link->get_impl());
  }
  void get_graph(const s_xbt_graph_t*, std::map<std::string, xbt_node_t, std::less<>>*,
                 std::map<std::string, xbt_edge_t, std::less<>>*) override {}
};

/// Hosts and links of this process. SimGrid adds none to a platform that has run, so each plan
/// renames the ones made at the start.
struct Platform {
  sg4::Engine engine{"whole-simgrid"};
  TransferZone* zone = nullptr;
  std::vector<sg4::Host*> sources;  // those no transfer in flight uses
  sg4::Host* sink = nullptr;        // end of every transfer
  std::vector<sg4::Host*> compute,
      other;  // by rank: compute streams; host thread and other streams
  std::vector<sg4::Link*> links, caps;

  Platform() {
    for (const char* setting :
         {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:1e30",
          "surf/precision:1e-12", "maxmin/precision:1e-9", "contexts/stack-size:256"}) {
      sg4::Engine::set_config(setting);
    }
    zone = new TransferZone("transfers");  // owned by SimGrid
    sg4::NetZone* z = zone->get_iface();
    std::vector<double> speeds;
    for (const double slowdown : kSlowdowns) speeds.push_back(kFlopsPerSecond / slowdown);
    for (std::size_t s = 0; s < kSources; ++s) {
      sources.push_back(z->create_host("source" + std::to_string(s), kFlopsPerSecond));
    }
    sink = z->create_host("sink", kFlopsPerSecond);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const std::string name = std::to_string(r);
      compute.push_back(z->create_host("compute" + name, speeds)->set_core_count(64));
      other.push_back(z->create_host("other" + name, kFlopsPerSecond)->set_core_count(64));
    }
    for (std::size_t l = 0; l < kLinks; ++l) {
      links.push_back(z->create_link("link" + std::to_string(l), 1e9));
    }
    for (std::size_t c = 0; c < kCaps; ++c) {
      caps.push_back(z->create_link("cap" + std::to_string(c), 1e9));
      caps.back()->set_sharing_policy(sg4::Link::SharingPolicy::FATPIPE);
    }
    z->seal();
  }
  static Platform& instance() {
    // Each on its own line: an unknown category aborts, so they are the ones SimGrid has.
    xbt_log_control_set("xbt_cfg.thres:warning");
    static auto* platform = new Platform;  // SimGrid's own exit order is not ours to disturb
    return *platform;
  }
};

/// Opens once; actors wait for that.
class Gate {
 public:
  void wait() {
    if (open_) return;
    const sg4::SemaphorePtr own = sg4::Semaphore::create(0);
    waiting_.push_back(own);
    own->acquire();
  }
  void open() {
    open_ = true;
    // Each release lets others run, which may add to or drop what they see of this gate.
    const std::vector<sg4::SemaphorePtr> waiting = std::exchange(waiting_, {});
    for (const sg4::SemaphorePtr& s : waiting) s->release();
  }

 private:
  bool open_ = false;
  std::vector<sg4::SemaphorePtr> waiting_;
};
using GatePtr = std::shared_ptr<Gate>;

/// What the host puts on a stream: Record and Wait with their gate, tasks with what they need.
struct Item {
  const Instruction* instruction = nullptr;  // null: the stream ends
  GatePtr gate{};
  std::vector<std::pair<const Instruction*, std::uint32_t>>
      communications{};                // with their sequence
  std::vector<std::size_t> numbers{};  // of its tasks, in the order of issue
  std::uint32_t position = 0;
  int body = 0;
};

struct StreamQueue {
  std::deque<Item> items;
  sg4::SemaphorePtr filled = sg4::Semaphore::create(0);

  void push(Item item) {
    items.push_back(std::move(item));
    filled->release();
  }
  Item pop() {
    filled->acquire();
    Item item = std::move(items.front());
    items.pop_front();
    return item;
  }
};

struct RankState {
  std::vector<std::unique_ptr<StreamQueue>> streams;
  std::vector<GatePtr> latest, previous;  // by event
  std::map<std::uint32_t, std::uint32_t> collectives;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> pairs;
  std::vector<bool> over;  // by task in the order of issue
  std::size_t freed = 0;   // tasks at the front of `over` that are over: the launch queue is a ring
  int active_collectives = 0, actors = 0;
  GatePtr room;         // the host waits for a task to end
  bool waited = false;  // the host, for an event, and has issued nothing since
  std::vector<double> body_end;
};

/// A collective or a transfer: who came, and the gate that opens at its end.
struct Meeting {
  std::size_t arrived = 0;
  GatePtr over = std::make_shared<Gate>();
};

class Run {
 public:
  Run(const Plan& plan, const CostModel& costs, const Topology& topology)
      : plan_(plan),
        costs_(costs),
        topology_(topology),
        at_(Platform::instance()),
        bodies_(plan.crosses_iterations() ? 8 : 1),
        start_(sg4::Engine::get_clock()) {
    GPUTWIN_CHECK(plan.ranks.size() <= kRanks && topology.links().size() <= kLinks,
                  "the pool is large enough for the plan");
    for (std::size_t l = 0; l < topology.links().size(); ++l) {
      const double capacity = topology.links()[l].capacity.value;
      if (capacity > 0) at_.links[l]->set_bandwidth(capacity);
    }
  }
  ExecutionOutcome run();

 private:
  void host_thread(std::uint32_t r);
  void issue_task(std::uint32_t r, const Instruction& instruction, Item& group, bool last_of_group);
  void stream(std::uint32_t r, std::uint8_t s);
  void run_task(std::uint32_t r, std::uint8_t s, const Item& item);
  void kernel(std::uint32_t r, std::uint8_t s, const Item& item);
  void copy(std::uint32_t r, const Instruction& instruction);
  void collective(std::uint32_t r, const Instruction& instruction, std::uint32_t sequence);
  void transfers(std::uint32_t r, const Item& item);
  void transfer(std::uint32_t from, std::uint32_t to, Bytes bytes);
  void set_active(std::uint32_t r, int by);
  sg4::CommPtr start_flow(const Route& route, Bytes bytes, double rate_cap);
  void finish_flow(const sg4::CommPtr& comm);
  void flows(const CollectiveSchedule& schedule, const std::vector<GpuId>& members);
  std::size_t bodies_until_converged() const;

  const Plan& plan_;
  const CostModel& costs_;
  const Topology& topology_;
  Platform& at_;
  int bodies_;
  double start_;
  std::vector<RankState> ranks_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Meeting> collectives_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Meeting> transfers_;
  std::map<double, sg4::Link*> caps_;
};

Bytes bytes_of(const Call& call) {
  Bytes read{}, written{};
  for (const View& v : call.reads) read += v.bytes();
  for (const View& v : call.writes) written += v.bytes();
  const Bytes larger = std::max(read, written);
  return larger.value > 0 ? larger : Bytes((call.op.dims[0] * bits(call.op.dtype) + 7) / 8);
}

bool communicates(const Instruction& i) {
  return i.kind == Kind::Collective || i.kind == Kind::Send || i.kind == Kind::Recv;
}
bool grouped(const Instruction& i) {
  return (i.kind == Kind::Send || i.kind == Kind::Recv) && (i.flags & kGrouped) != 0;
}

void work_on(sg4::Host* host, double flops) {
  if (flops <= 0) return;
  const sg4::ExecPtr exec = sg4::Exec::init();
  exec->set_flops_amount(flops);
  exec->set_host(host);
  exec->vetoable_start();
  exec->wait();
}

// ---- host ---------------------------------------------------------------------------------------

void Run::host_thread(std::uint32_t r) {
  RankState& rank = ranks_[r];
  const Program& program = plan_.programs[plan_.ranks[r].program.value];
  std::uint32_t position = 0;
  for (int body = -1; body < bodies_; ++body) {
    const auto& part = body < 0 ? program.prologue : program.body;
    const auto first = static_cast<std::uint32_t>(body < 0 ? 0 : program.prologue.size());
    rank.previous = rank.latest;
    Item group;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const Instruction& instruction = part[i];
      position = first + static_cast<std::uint32_t>(i);
      const bool previous = (instruction.flags & kPreviousBody) != 0;
      const auto gate_of = [&] {
        return (previous ? rank.previous : rank.latest)[instruction.event];
      };
      if (instruction.kind == Kind::Record) {
        rank.latest[instruction.event] = std::make_shared<Gate>();
        rank.streams[instruction.stream]->push({&instruction, gate_of()});
      } else if (instruction.kind == Kind::Wait) {
        rank.streams[instruction.stream]->push({&instruction, gate_of()});
      } else if (instruction.kind == Kind::HostWait) {
        rank.waited = true;
        if (const GatePtr gate = gate_of()) gate->wait();
      } else if (is_task(instruction.kind)) {
        const bool joins = grouped(instruction) && i + 1 < part.size() && grouped(part[i + 1]) &&
                           part[i + 1].stream == instruction.stream;
        group.position = position;
        group.body = body;
        issue_task(r, instruction, group, !joins);
      }
    }
  }
  for (auto& s : rank.streams) s->push({});
  --rank.actors;
}

void Run::issue_task(std::uint32_t r, const Instruction& instruction, Item& group,
                     bool last_of_group) {
  RankState& rank = ranks_[r];
  const HostCost cost = costs_.host(topology_.device_kind(plan_.ranks[r].gpu));
  while (rank.over.size() - rank.freed >= static_cast<std::size_t>(cost.queue_depth)) {
    const GatePtr room = rank.room = std::make_shared<Gate>();
    room->wait();
  }
  group.numbers.push_back(rank.over.size());
  rank.over.push_back(false);
  std::uint32_t sequence = 0;
  if (communicates(instruction)) {
    const std::uint32_t slot = plan_.ranks[r].slots[plan_.call(instruction).op.slot.value];
    sequence = instruction.kind == Kind::Collective ? rank.collectives[slot]++
               : instruction.kind == Kind::Send     ? rank.pairs[{r, slot}]++
                                                    : rank.pairs[{slot, r}]++;
  }
  Seconds launch = communicates(instruction) ? cost.collective_launch : cost.launch;
  if (std::exchange(rank.waited, false)) launch += cost.resume;
  if (!plan_.cuda_graph) work_on(at_.other[r], static_cast<double>(to_ps(launch)));
  if (group.instruction == nullptr) group.instruction = &instruction;
  group.communications.emplace_back(&instruction, sequence);
  if (!last_of_group) return;
  rank.streams[instruction.stream]->push(std::move(group));
  group = Item{};
}

// ---- streams ------------------------------------------------------------------------------------

void Run::stream(std::uint32_t r, std::uint8_t s) {
  RankState& rank = ranks_[r];
  while (true) {
    const Item item = rank.streams[s]->pop();
    if (item.instruction == nullptr) break;
    if (item.instruction->kind == Kind::Record) {
      item.gate->open();
    } else if (item.instruction->kind == Kind::Wait) {
      if (item.gate) item.gate->wait();
    } else {
      run_task(r, s, item);
    }
  }
  --rank.actors;
}

void Run::run_task(std::uint32_t r, std::uint8_t s, const Item& item) {
  RankState& rank = ranks_[r];
  switch (item.instruction->kind) {
    case Kind::Kernel:
    case Kind::HostTask: kernel(r, s, item); break;
    case Kind::Copy: copy(r, *item.instruction); break;
    case Kind::Collective:
      collective(r, *item.instruction, item.communications.front().second);
      break;
    case Kind::Send:
    case Kind::Recv: transfers(r, item); break;
    case Kind::Alloc:
    case Kind::Free:
    case Kind::Record:
    case Kind::Wait:
    case Kind::HostWait: break;
  }
  for (const std::size_t number : item.numbers) rank.over[number] = true;
  while (rank.freed < rank.over.size() && rank.over[rank.freed]) ++rank.freed;
  if (const GatePtr room = std::exchange(rank.room, nullptr)) room->open();
  if (item.body >= 0) {
    double& end = rank.body_end[static_cast<std::size_t>(item.body)];
    end = std::max(end, sg4::Engine::get_clock() - start_);
  }
}

void Run::kernel(std::uint32_t r, std::uint8_t s, const Item& item) {
  const Call& call = plan_.call(*item.instruction);
  const Rank& rank = plan_.ranks[r];
  Bytes read{}, written{};
  for (const View& v : call.reads) read += v.bytes();
  for (const View& v : call.writes) written += v.bytes();
  Seconds time = costs_.kernel(call.op, read, written, topology_.device_kind(rank.gpu)).time;
  if (item.instruction->kind == Kind::Kernel) {
    time = time * (rank.slowdown * jitter_factor(plan_.jitter, RankId(r), item.position));
  }
  const Stream& stream = plan_.programs[rank.program.value].streams[s];
  const bool compute = stream.kind == StreamKind::Compute;
  work_on(compute ? at_.compute[r] : at_.other[r], static_cast<double>(to_ps(time)));
}

void Run::copy(std::uint32_t r, const Instruction& instruction) {
  const Call& call = plan_.call(instruction);
  const GpuId gpu = plan_.ranks[r].gpu;
  const Bytes bytes = bytes_of(call);
  const Cost cost = costs_.copy(call.op.copy, bytes, call.op.pinned, gpu);
  const Route route = topology_.copy_route(gpu, call.op.copy);
  sg4::this_actor::sleep_for(cost.term(Term::StartUp).value);
  const double alone = (cost.time - cost.term(Term::StartUp)).value;
  const double rate = static_cast<double>(bytes.value) / alone;
  finish_flow(start_flow(route, bytes, rate));
}

void Run::collective(std::uint32_t r, const Instruction& instruction, std::uint32_t sequence) {
  const Call& call = plan_.call(instruction);
  const std::uint32_t c = plan_.ranks[r].slots[call.op.slot.value];
  const std::vector<RankId>& members = plan_.communicators[c].members;
  Meeting& meeting = collectives_[{c, sequence}];
  if (++meeting.arrived < members.size()) {
    const GatePtr over = meeting.over;
    return over->wait();
  }
  std::vector<GpuId> gpus;
  for (const RankId member : members) gpus.push_back(plan_.ranks[member.value].gpu);
  for (const RankId member : members) set_active(member.value, +1);
  flows(costs_.collective(call.op.kind, bytes_of(call), gpus), gpus);
  for (const RankId member : members) set_active(member.value, -1);
  meeting.over->open();
}

/// The transfers of one group, each in an actor of its own, since one may have to wait for its peer
/// longer than the next.
void Run::transfers(std::uint32_t r, const Item& item) {
  std::vector<GatePtr> gates;
  for (const auto& [instruction, sequence] : item.communications) {
    const Call& call = plan_.call(*instruction);
    const std::uint32_t peer = plan_.ranks[r].slots[call.op.slot.value];
    const bool sends = instruction->kind == Kind::Send;
    const std::uint32_t from = sends ? r : peer, to = sends ? peer : r;
    Meeting& meeting = transfers_[{from, to, sequence}];
    gates.push_back(meeting.over);
    if (++meeting.arrived < 2) continue;
    const Bytes bytes = bytes_of(call);
    sg4::Actor::create("transfer", at_.other[r], [this, from, to, bytes, over = meeting.over] {
      transfer(from, to, bytes);
      over->open();
    });
  }
  for (const GatePtr& gate : gates) gate->wait();
}

void Run::transfer(std::uint32_t from, std::uint32_t to, Bytes bytes) {
  const std::vector<GpuId> gpus{plan_.ranks[from].gpu, plan_.ranks[to].gpu};
  flows(costs_.collective(OpKind::SendTo, bytes, gpus), gpus);
}

void Run::set_active(std::uint32_t r, int by) {
  RankState& rank = ranks_[r];
  rank.active_collectives += by;
  const DeviceKindId device = topology_.device_kind(plan_.ranks[r].gpu);
  const double slowdown = costs_.interference(device).compute_slowdown;
  const auto* speed = std::find(std::begin(kSlowdowns), std::end(kSlowdowns), slowdown);
  GPUTWIN_CHECK(speed != std::end(kSlowdowns), "the pool has a host speed for this slowdown");
  const auto slow = static_cast<unsigned long>(speed - std::begin(kSlowdowns));
  at_.compute[r]->set_pstate(rank.active_collectives > 0 ? slow : 0);
}

// ---- transfers ----------------------------------------------------------------------------------

/// Starts one flow. Null where it takes no time, having no bytes or nothing that limits it.
sg4::CommPtr Run::start_flow(const Route& route, Bytes bytes, double rate_cap) {
  const bool capped = rate_cap > 0 && std::isfinite(rate_cap);
  if (bytes.value <= 0 || (route.count == 0 && !capped)) return nullptr;
  GPUTWIN_CHECK(!at_.sources.empty(), "the pool has a source for every transfer in flight");
  sg4::Host* source = at_.sources.back();
  at_.sources.pop_back();
  std::vector<sg4::Link*>& links = at_.zone->routes[source->get_netpoint()];
  links.clear();
  for (const LinkId link : route) links.push_back(at_.links[link.value]);
  if (capped) {
    const auto [it, is_new] = caps_.try_emplace(rate_cap, nullptr);
    if (is_new) {
      GPUTWIN_CHECK(caps_.size() <= kCaps, "the pool has a link for every rate cap");
      it->second = at_.caps[caps_.size() - 1];
      it->second->set_bandwidth(rate_cap);
    }
    links.push_back(it->second);
  }
  // It starts by itself once it has a size and both ends.
  sg4::CommPtr comm = sg4::Comm::sendto_init();
  comm->set_payload_size(static_cast<std::uint64_t>(bytes.value));
  comm->set_source(source);
  comm->set_destination(at_.sink);
  return comm;
}

void Run::finish_flow(const sg4::CommPtr& comm) {
  if (!comm) return;
  comm->wait();
  at_.sources.push_back(comm->get_source());
}

void Run::flows(const CollectiveSchedule& schedule, const std::vector<GpuId>& members) {
  sg4::this_actor::sleep_for(schedule.latency.value);
  std::vector<sg4::CommPtr> comms;
  for (const FlowEdge& edge : schedule.edges) {
    const Route route = topology_.route(members[edge.from], members[edge.to]);
    comms.push_back(start_flow(route, edge.bytes, schedule.rate_cap.value));
  }
  for (const sg4::CommPtr& comm : comms) finish_flow(comm);
}

// ---- figures ------------------------------------------------------------------------------------

/// Bodies after which two successive periods agreed to 1 ps. All eight have run, and what came
/// after the last one that counts could not change it, unless by contention.
std::size_t Run::bodies_until_converged() const {
  std::vector<Ps> ends;
  for (std::size_t b = 0; b < static_cast<std::size_t>(bodies_); ++b) {
    double end = 0;
    for (const RankState& rank : ranks_) end = std::max(end, rank.body_end[b]);
    ends.push_back(to_ps(Seconds(end)));
    if (b >= 2 && std::abs((ends[b] - ends[b - 1]) - (ends[b - 1] - ends[b - 2])) <= 1) break;
  }
  return ends.size();
}

ExecutionOutcome Run::run() {
  for (const Rank& rank : plan_.ranks) {
    const Program& program = plan_.programs[rank.program.value];
    RankState state;
    for (std::size_t s = 0; s < program.streams.size(); ++s) {
      state.streams.push_back(std::make_unique<StreamQueue>());
    }
    state.latest.resize(program.events);
    state.body_end.assign(static_cast<std::size_t>(bodies_), 0.0);
    state.actors = static_cast<int>(program.streams.size()) + 1;
    ranks_.push_back(std::move(state));
  }
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    sg4::Actor::create("host", at_.other[r], [this, r] { host_thread(r); });
    for (std::size_t s = 0; s < ranks_[r].streams.size(); ++s) {
      const auto stream_index = static_cast<std::uint8_t>(s);
      sg4::Actor::create("stream", at_.other[r],
                         [this, r, stream_index] { stream(r, stream_index); });
    }
  }
  at_.engine.run();
  const auto blocked = std::count_if(ranks_.begin(), ranks_.end(),
                                     [](const RankState& rank) { return rank.actors > 0; });
  if (blocked > 0) return Deadlock{{}, static_cast<std::int32_t>(blocked)};
  Execution result;
  const std::size_t n = bodies_until_converged();
  Ps before = 0;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    result.rank_end.push_back(to_ps(Seconds(ranks_[r].body_end[n - 1])));
    if (n > 1) before = std::max(before, to_ps(Seconds(ranks_[r].body_end[n - 2])));
    if (r > 0 && result.rank_end[r] <= result.makespan) continue;
    result.makespan = result.rank_end[r];
    result.last_rank = RankId(r);
  }
  result.iteration = result.makespan - before;
  return result;
}

}  // namespace

ExecutionOutcome WholeSimgridExecutor::run(const Plan& plan, const CostModel& costs,
                                           const Topology& topology, const RunOptions&,
                                           EventSink*) {
  return Run(plan, costs, topology).run();
}

}  // namespace gputwin::test
