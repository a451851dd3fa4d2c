// The timeline of a run as a Store, gathered while it happens, and as a .gtr file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/event_sink.h"
#include "sim/core/topology.h"
#include "sim/trace/flow_arrows.h"
#include "sim/trace/link_load.h"
#include "sim/trace/memory_timeline.h"
#include "sim/trace/power_timeline.h"
#include "sim/trace/store_builder.h"

namespace gputwin {

/// Watches some ranks of a run. Memory: about 30 B a slice.
class RunTrace final : public EventSink {
 public:
  /// `plan` and `topology` must outlive it. `ranks`: whose events are kept.
  RunTrace(const Plan& plan, const Topology& topology, std::vector<RankId> ranks,
           PowerSource power = {});
  ~RunTrace() override;

  void op(const OpEvent& event) override;
  void flow(RankId from, RankId to, Bytes bytes, const Route& route, Ps start, Ps end) override;
  bool progress(double) override { return true; }

  /// The timeline; once. `title`: the scenario's name; the two texts travel with the trace.
  Store finish(std::string title, std::string scenario_json, std::string result_json);

 private:
  struct Rows;
  struct DefinitionKey {
    std::uint32_t name, call, framed;
    bool operator==(const DefinitionKey&) const = default;
  };
  struct Hash {
    std::size_t operator()(const DefinitionKey& k) const {
      return (std::size_t{k.name} << 33 | std::size_t{k.framed} << 32 | k.call) *
             0x9e3779b97f4a7c15u;
    }
  };
  void add_rank(RankId rank);
  std::uint32_t definition_of(const Instruction& instruction, const Program& program);
  void take_memory(Rows& rows, const std::vector<MemorySample>& samples);
  void take_link_loads();
  void take_power();

  const Plan& plan_;
  const Topology& topology_;
  std::vector<RankId> ranks_;
  std::vector<std::unique_ptr<Rows>> rows_;  // by rank; null: not watched
  StoreBuilder builder_;
  std::unordered_map<DefinitionKey, std::uint32_t, Hash> definitions_;
  std::unique_ptr<FlowArrows> arrows_;
  std::unique_ptr<LinkLoad> loads_;
  std::unique_ptr<PowerTimeline> power_;
  std::vector<Arrow> new_arrows_;
  std::vector<MemorySample> new_samples_;
};

}  // namespace gputwin
