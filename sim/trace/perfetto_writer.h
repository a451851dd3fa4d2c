// Writes a run as a trace that Perfetto and chrome://tracing open, while it happens.
//
// One process per rank, one thread per stream; slices named as in Plan::full_name, with their phase
// as category and what they compute as arguments; arrows from send to receive and within
// collectives; counters for allocated memory by class and for the load of links. Times are exact to
// the picosecond.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "sim/core/cost.h"
#include "sim/core/event_sink.h"
#include "sim/core/topology.h"
#include "sim/trace/flow_arrows.h"
#include "sim/trace/link_load.h"
#include "sim/trace/memory_timeline.h"
#include "sim/trace/power_timeline.h"
#include "sim/trace/slice_text.h"

namespace gputwin {

class AtomicFile;

/// More ranks or links than these are not written: the viewer, not the writer, is the limit.
inline constexpr std::size_t kMaxTracedRanks = 64;
inline constexpr std::size_t kMaxTracedLinks = 256;

struct PerfettoOptions {
  std::string title;  // of the trace: the scenario's name
  /// Whose load is drawn; empty: those near the ranks' GPUs, and the fabric's.
  std::vector<LinkId> links{};
  std::vector<Cost> call_costs{};  // by CallId; empty: slices carry no cost terms
  PowerSource power{};             // none: no counters of power
};

struct TraceCounts {
  std::int64_t slices = 0, arrows = 0, counters = 0;
  bool operator==(const TraceCounts&) const = default;
};

/// Memory  bounded by the plan (a name and an argument text per call) and the buffers; never by the
/// events. Fails   InputError from the constructor and close() when the file cannot be written. An
/// error on the way
///         does not throw into the engine: progress() then returns false, close() throws.
class PerfettoWriter final : public EventSink {
 public:
  /// Writes what happens to `ranks` (the first kMaxTracedRanks of them in order; empty: of all).
  /// `plan` and `topology` must outlive the writer. A path that ends in ".gz" is compressed.
  PerfettoWriter(const std::filesystem::path& path, const Plan& plan, const Topology& topology,
                 std::vector<RankId> ranks, PerfettoOptions options = {});
  ~PerfettoWriter() override;  // without close(), nothing is left behind

  void op(const OpEvent& event) override;
  void flow(RankId from, RankId to, Bytes bytes, const Route& route, Ps start, Ps end) override;
  bool progress(double fraction) override;
  /// Ends the trace and puts it in place under its name.
  void close();

  const TraceCounts& counts() const { return counts_; }

 private:
  struct Track;

  void write_metadata();
  void write_slice(const OpEvent& event);
  void write_arrow(const Arrow& arrow);
  void write_arrow_end(char phase, RankId rank, std::uint8_t stream, Ps at);
  void write_memory(RankId rank, const std::vector<MemorySample>& samples);
  void write_link_loads();
  void write_power();
  const SliceName& name_of(const Instruction& instruction);
  const std::string& arguments_of(const Instruction& instruction);
  void begin_event(char phase, std::int64_t process);
  void flush(std::size_t threshold);

  const Plan& plan_;
  const Topology& topology_;
  std::vector<RankId> ranks_;  // written, sorted
  PerfettoOptions options_;
  std::unique_ptr<AtomicFile> file_;
  std::string buffer_, error_;
  std::vector<std::unique_ptr<Track>> tracks_;  // by rank; null: not written
  std::vector<std::unique_ptr<SliceName>> names_;
  std::vector<std::string> arguments_;  // by call; empty: not yet made
  std::unique_ptr<FlowArrows> arrows_;
  std::unique_ptr<LinkLoad> loads_;
  std::unique_ptr<PowerTimeline> power_;
  std::vector<Arrow> new_arrows_;
  std::vector<MemorySample> new_samples_;
  TraceCounts counts_;
  Ps last_end_ = 0;
};

}  // namespace gputwin
