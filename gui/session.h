// What all views share: the open trace, one time window, one selection, marks, hits of a search.
#pragma once

#include <QObject>
#include <memory>
#include <optional>
#include <vector>

#include "gui/query.h"
#include "sim/trace/queries.h"
#include "sim/trace/store.h"

namespace gputwin::gui {

struct Mark {
  Ps at = 0;
  QString note;
};

/// The window of time on screen; fractions of a picosecond when zoomed in very far.
struct Window {
  double from = 0, per_pixel = 1;
  bool operator==(const Window&) const = default;
};

class Session : public QObject {
  Q_OBJECT

 public:
  explicit Session(QObject* parent = nullptr);

  const Store* store() const { return store_.get(); }
  std::shared_ptr<const Store> shared_store() const { return store_; }
  void set_store(std::shared_ptr<const Store> store);

  SliceId selected() const { return selected_; }
  void select(SliceId slice);
  /// The selected range of time, else the whole run.
  TimeRange range_or_all() const;
  const std::optional<TimeRange>& range() const { return range_; }
  void select_range(std::optional<TimeRange> range);

  const SearchHits& hits() const { return hits_; }
  /// Looks for slices in the background; hits_changed() tells of them.
  void search(const QString& words);
  const QString& words() const { return words_; }

  const std::vector<PathStep>& path() const { return path_; }
  void show_path(bool on);
  bool path_shown() const { return path_shown_; }
  /// A search or the critical path is under way.
  bool busy() const { return searching_.busy() || tracing_.busy(); }

  std::vector<Mark> marks;

 Q_SIGNALS:
  void store_changed();
  void selection_changed();
  void range_changed();
  void hits_changed();
  void path_changed();
  void marks_changed();
  /// A view asks the timeline to show a slice.
  void reveal(SliceId slice);

 private:
  std::shared_ptr<const Store> store_;
  SliceId selected_ = kNoSlice;
  std::optional<TimeRange> range_;
  SearchHits hits_;
  QString words_;
  std::vector<PathStep> path_;
  bool path_shown_ = false;
  Query<SearchHits> searching_;
  Query<std::vector<PathStep>> tracing_;
};

}  // namespace gputwin::gui
