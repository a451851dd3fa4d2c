#include "gui/row_model.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "sim/trace/address_map.h"

namespace gputwin::gui {

namespace {

constexpr int kCounterHeight = 40;
constexpr std::size_t kManyCounters = 24;  // groups with more begin closed

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

void RowModel::set_store(const Store* store) {
  store_ = store;
  closed_.clear();
  pins_.clear();
  if (store_ != nullptr) {
    std::map<std::uint32_t, std::size_t> counters;
    for (const Counter& c : store_->counters) counters[c.process] += is_address_counter(c) ? 0 : 1;
    for (const auto& [process, count] : counters) {
      if (count > kManyCounters) closed_.insert(store_->processes[process].name);
    }
  }
  rebuild();
}

void RowModel::set_grouping(Grouping grouping) {
  grouping_ = grouping;
  rebuild();
}

void RowModel::set_row_height(int pixels) {
  row_height_ = std::clamp(pixels, 1, 60);
  rebuild();
}

void RowModel::toggle(const std::string& group) {
  if (closed_.erase(group) == 0) closed_.insert(group);
  rebuild();
}

void RowModel::set_all_open(bool open) {
  closed_.clear();
  if (!open) {
    for (const Row& row : rows_) {
      if (row.kind == RowKind::Group) closed_.insert(row.key);
    }
  }
  rebuild();
}

void RowModel::toggle_pin(const Row& row) {
  const std::string pin = row.key + "\x1f" + row.label;
  if (pins_.erase(pin) == 0) pins_.insert(pin);
  rebuild();
}

void RowModel::clear_pins() {
  pins_.clear();
  rebuild();
}

std::string RowModel::group_of(const Track& track) const {
  const TraceProcess& p = store_->processes[track.process];
  switch (grouping_) {
    case Grouping::Rank: return p.name;
    case Grouping::Stage: return p.role.empty() ? p.name : p.role;
    case Grouping::Node: return p.node < 0 ? p.name : "node " + std::to_string(p.node);
    case Grouping::Meaning: return "all " + track.name;
  }
  return p.name;
}

void RowModel::add_row(Row row) {
  const std::string pin = row.key + "\x1f" + row.label;
  row.pinned = pins_.count(pin) > 0;
  rows_.push_back(std::move(row));
}

void RowModel::add_counters(std::uint32_t process) {
  std::map<std::string, Row> by_name;
  std::vector<std::string> order;
  const std::string& owner = store_->processes[process].name;
  for (std::uint32_t c = 0; c < store_->counters.size(); ++c) {
    const Counter& counter = store_->counters[c];
    if (counter.process != process || is_address_counter(counter)) continue;
    Row& row = by_name[counter.name];
    if (row.parts.empty()) {
      order.push_back(counter.name);
      row = {RowKind::Counter, counter.name, owner, c, {}, 0, kCounterHeight, true, false};
    }
    row.parts.push_back(c);
  }
  for (const std::string& name : order) add_row(std::move(by_name[name]));
}

void RowModel::add_group(const std::string& key, const std::vector<std::uint32_t>& tracks) {
  const bool open = closed_.count(key) == 0;
  const int head = std::max(row_height_ < 6 ? row_height_ : 18, row_height_);
  add_row({RowKind::Group, key, key, 0, tracks, 0, open ? std::min(head, 18) : head, open, false});
  if (!open) return;
  const bool by_rank = grouping_ == Grouping::Rank;
  for (const std::uint32_t t : tracks) {
    const Track& track = store_->tracks[t];
    const std::string& owner = store_->processes[track.process].name;
    std::string label =
        by_rank ? track.name : owner.substr(0, owner.find(" · ")) + " " + track.name;
    if (track.depth > 0) label = "";
    add_row({RowKind::Track, label, key, t, {}, 0, row_height_, true, false});
  }
}

void RowModel::rebuild() {
  rows_.clear();
  height_ = 0;
  if (store_ == nullptr) return;
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::uint32_t>> groups;
  for (std::uint32_t t = 0; t < store_->tracks.size(); ++t) {
    if (store_->tracks[t].count == 0) continue;
    const std::string key = group_of(store_->tracks[t]);
    auto& tracks = groups[key];
    if (tracks.empty()) order.push_back(key);
    tracks.push_back(t);
  }
  std::vector<char> counted(store_->processes.size(), 0);
  for (const std::string& key : order) {
    add_group(key, groups[key]);
    const std::uint32_t process = store_->tracks[groups[key].front()].process;
    if (grouping_ == Grouping::Rank && closed_.count(key) == 0 && row_height_ >= 6) {
      add_counters(process);
    }
    counted[process] = 1;
  }
  for (const Counter& c : store_->counters) {
    if (counted[c.process] != 0 || row_height_ < 6) continue;
    counted[c.process] = 1;
    const std::string& name = store_->processes[c.process].name;
    if (grouping_ != Grouping::Rank && store_->processes[c.process].rank >= 0) continue;
    add_group(name, {});
    if (closed_.count(name) == 0) add_counters(c.process);
  }
  std::stable_partition(rows_.begin(), rows_.end(), [](const Row& r) { return r.pinned; });
  for (Row& row : rows_) {
    row.top = height_;
    height_ += row.height;
  }
}

int RowModel::row_at(int y) const {
  if (y < 0) return -1;
  const auto after = std::upper_bound(rows_.begin(), rows_.end(), y,
                                      [](int at, const Row& row) { return at < row.top; });
  const int row = static_cast<int>(after - rows_.begin()) - 1;
  return row >= 0 && y < height_ ? row : -1;
}

std::pair<int, int> RowModel::visible(int top, int bottom) const {
  const int first = std::max(0, row_at(std::clamp(top, 0, std::max(0, height_ - 1))));
  int last = first;
  while (last < static_cast<int>(rows_.size()) &&
         rows_[static_cast<std::size_t>(last)].top < bottom)
    ++last;
  return {first, last};
}

int RowModel::reveal_track(std::uint32_t track) {
  if (store_ == nullptr || track >= store_->tracks.size()) return -1;
  if (closed_.erase(group_of(store_->tracks[track])) > 0) rebuild();
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].kind == RowKind::Track && rows_[r].id == track) return static_cast<int>(r);
  }
  return -1;
}

int RowModel::find(const std::string& words) const {
  const std::string wanted = lower(words);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (lower(rows_[r].key + " " + rows_[r].label).find(wanted) != std::string::npos) {
      return static_cast<int>(r);
    }
  }
  return -1;
}

}  // namespace gputwin::gui
