// A timeline in memory: columns of slices by track, with level of detail, flows and counters. Alike
// for predicted, measured and imported runs. Immutable once built; safe to read from many threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/trace/level_of_detail.h"
#include "sim/trace/slice_kind.h"

namespace gputwin {

using SliceId = std::uint32_t;  // index into the columns
inline constexpr SliceId kNoSlice = 0xffffffffu;
inline constexpr std::uint32_t kUnframed = 0xffffffffu;
inline constexpr std::uint32_t kNoText = 0xffffffffu;

/// Texts, each stored once or as often as added. Views stay valid as long as the object.
class Texts {
 public:
  Texts() = default;
  /// `ends` must ascend and end with the length of `blob`.
  Texts(std::string blob, std::vector<std::uint64_t> ends)
      : blob_(std::move(blob)), ends_(std::move(ends)) {}

  std::uint32_t add(std::string_view text);
  const std::string& blob() const { return blob_; }
  const std::vector<std::uint64_t>& ends() const { return ends_; }
  std::string_view at(std::uint32_t id) const;
  std::size_t size() const { return ends_.size(); }
  std::size_t bytes() const { return blob_.size() + ends_.size() * sizeof(ends_[0]); }

 private:
  std::string blob_;
  std::vector<std::uint64_t> ends_;
};

/// A rank, or a process of an imported trace.
struct TraceProcess {
  std::string name;        // "rank 3 · stage1 · gpu 3"
  std::string role;        // "stage1"; empty in imported traces
  std::int32_t rank = -1;  // -1: none
  std::int32_t node = -1;  // of the cluster; -1: unknown
  bool operator==(const TraceProcess&) const = default;
};

/// A row: slices of one stream that do not overlap. Nested slices of a host thread lie in tracks of
/// growing depth.
struct Track {
  std::uint32_t process = 0;
  std::string name;         // of the stream: "compute"
  std::uint32_t depth = 0;  // of nesting
  SliceId first = 0, count = 0;
  bool operator==(const Track&) const = default;
};

/// What many slices share. The name of a slice is before + micro-batch + after, or `before` alone.
struct Definition {
  std::string before, after;
  bool framed = false;
  SliceKind kind = SliceKind::Other;
  std::string phase;  // "forward"; of imported traces: the category
  std::string op;     // "fc1"; of imported traces: the name
  std::int32_t layer = kNoLayer;
  std::string arguments;  // a JSON object, or empty
  static constexpr std::int32_t kNoLayer = -1000;
  bool operator==(const Definition&) const = default;
};

struct Flow {
  SliceId from = 0, to = 0;
  bool operator==(const Flow&) const = default;
};

struct Counter {
  std::uint32_t process = 0;
  std::string name;           // "gpu memory"
  std::string series;         // "weights_bytes"
  std::vector<Ps> at;         // ascending
  std::vector<double> value;  // from at[i] on
  bool operator==(const Counter&) const = default;
};

/// Picoseconds [begin, end).
struct TimeRange {
  Ps begin = 0, end = 0;
  Ps length() const { return end - begin; }
  bool operator==(const TimeRange&) const = default;
};

class Store {
 public:
  std::string title, scenario_json, result_json, origin;
  std::uint64_t text_bytes = 0;       // of the text it was imported from, unpacked; 0: from none
  std::vector<std::string> warnings;  // what of the file was left out, and why
  std::vector<TraceProcess> processes;
  std::vector<Track> tracks;  // by process, then stream, then depth
  std::vector<Definition> definitions;
  std::vector<Counter> counters;

  std::size_t size() const { return start_.size(); }
  TimeRange range() const { return range_; }
  Ps start(SliceId s) const { return start_[s]; }
  Ps duration(SliceId s) const {
    return duration_[s] != kLong ? static_cast<Ps>(duration_[s]) : long_duration(s);
  }
  Ps end(SliceId s) const { return start(s) + duration(s); }
  const Definition& definition(SliceId s) const { return definitions[definition_[s]]; }
  std::uint32_t definition_id(SliceId s) const { return definition_[s]; }
  std::uint32_t frame(SliceId s) const { return frame_[s] & kFrameMask; }
  std::uint32_t body(SliceId s) const { return frame_[s] >> kFrameBits; }
  bool framed(SliceId s) const { return frame(s) != kFrameMask; }
  SliceKind kind(SliceId s) const { return kinds_[definition_[s]]; }
  std::string name(SliceId s) const;
  /// Arguments of the slice as a JSON object, or empty.
  std::string_view arguments(SliceId s) const;
  std::uint32_t track_of(SliceId s) const;

  const std::vector<Flow>& flows() const { return flows_; }
  /// Flows that begin or end at a slice: rows of flows().
  std::vector<std::uint32_t> flows_from(SliceId s) const;
  std::vector<std::uint32_t> flows_to(SliceId s) const;

  /// Slices of `track` that overlap [begin, end): first and one past the last.
  std::pair<SliceId, SliceId> overlapping(const Track& track, Ps begin, Ps end) const;
  /// The slice of `track` at time `t`, or kNoSlice.
  SliceId at(const Track& track, Ps t) const;
  /// Coverage per pixel of a track (see LevelOfDetail::draw). False: so few slices that they are
  /// better drawn one by one; nothing was done. `widest`: bins of so many pixels will do.
  bool draw_cells(std::uint32_t track, double from, double per_pixel, std::span<Cell> out,
                  double widest = 1) const;

  /// Bytes held for slices: columns and level of detail, arguments apart.
  std::size_t slice_bytes() const;

  static constexpr std::uint32_t kLong = 0xffffffffu;
  static constexpr int kFrameBits = 28;
  static constexpr std::uint32_t kFrameMask = (1u << kFrameBits) - 1;

 private:
  friend class StoreBuilder;
  friend class GtrAccess;
  Ps long_duration(SliceId s) const;
  void index();  // kinds, level of detail, range, flow indices; after the columns are there
  void cells_of_slices(const Track& track, std::pair<SliceId, SliceId> span, double from,
                       double per_pixel, std::span<Cell> out) const;

  std::vector<Ps> start_;
  std::vector<std::uint32_t> duration_;       // ps; kLong: in long_
  std::vector<std::uint32_t> definition_;     // row of definitions
  std::vector<std::uint32_t> frame_;          // micro-batch, and body in the four highest bits
  std::vector<std::uint32_t> argument_;       // row of texts_, or empty when no slice has its own
  std::vector<std::pair<SliceId, Ps>> long_;  // durations of 2^32 - 1 ps and more, by slice
  Texts texts_;
  std::vector<Flow> flows_;                     // by from, then to
  std::vector<std::uint32_t> flows_by_target_;  // rows of flows_, by to
  std::vector<SliceKind> kinds_;                // by definition
  std::vector<LevelOfDetail> detail_;           // by track
  TimeRange range_;
};

}  // namespace gputwin
