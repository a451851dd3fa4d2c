// Which rows the timeline has, in which order and how high: grouping, folding, pins. No widgets.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sim/trace/store.h"

namespace gputwin::gui {

enum class RowKind : std::uint8_t { Group, Track, Counter };
enum class Grouping : std::uint8_t { Rank, Stage, Node, Meaning };

struct Row {
  RowKind kind = RowKind::Group;
  std::string label;
  std::string key;                   // of its group: stays the same when rows move
  std::uint32_t id = 0;              // Track: row of Store::tracks
  std::vector<std::uint32_t> parts;  // Group: its tracks; Counter: series drawn on each other
  int top = 0, height = 0;           // pixels from the top of all rows
  bool open = true;                  // Group
  bool pinned = false;
};

/// Lays the rows of a store out. Only numbers are kept per row, so that thousands cost nothing.
class RowModel {
 public:
  void set_store(const Store* store);
  void set_grouping(Grouping grouping);
  Grouping grouping() const { return grouping_; }
  /// Height of a track; 1 to 60 pixels.
  void set_row_height(int pixels);
  int row_height() const { return row_height_; }

  void toggle(const std::string& group);
  void set_all_open(bool open);
  void toggle_pin(const Row& row);
  void clear_pins();

  const std::vector<Row>& rows() const { return rows_; }
  int height() const { return height_; }
  /// Row at `y` pixels from the top of all rows; -1 below the last.
  int row_at(int y) const;
  /// Rows that show anything of [top, bottom).
  std::pair<int, int> visible(int top, int bottom) const;
  /// Row of a track, opening its group; -1 if the store has no such track.
  int reveal_track(std::uint32_t track);
  /// First row whose label or group holds `words`, whatever the case; -1: none.
  int find(const std::string& words) const;

 private:
  void rebuild();
  std::string group_of(const Track& track) const;
  void add_group(const std::string& key, const std::vector<std::uint32_t>& tracks);
  void add_counters(std::uint32_t process);
  void add_row(Row row);

  const Store* store_ = nullptr;
  Grouping grouping_ = Grouping::Rank;
  int row_height_ = 18, height_ = 0;
  std::set<std::string> closed_;
  std::set<std::string> pins_;
  std::vector<Row> rows_;
};

}  // namespace gputwin::gui
