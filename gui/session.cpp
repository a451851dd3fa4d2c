#include "gui/session.h"

namespace gputwin::gui {

namespace {

constexpr std::size_t kMostHits = 100'000;

}  // namespace

Session::Session(QObject* parent)
    : QObject(parent),
      searching_(this,
                 [this](SearchHits hits) {
                   hits_ = std::move(hits);
                   Q_EMIT hits_changed();
                 }),
      tracing_(this, [this](std::vector<PathStep> path) {
        path_ = std::move(path);
        Q_EMIT path_changed();
      }) {}

void Session::set_store(std::shared_ptr<const Store> store) {
  searching_.drop();
  tracing_.drop();
  store_ = std::move(store);
  selected_ = kNoSlice;
  range_.reset();
  hits_ = {};
  words_.clear();
  path_.clear();
  path_shown_ = false;
  marks.clear();
  Q_EMIT store_changed();
  Q_EMIT selection_changed();
  Q_EMIT range_changed();
  Q_EMIT hits_changed();
  Q_EMIT path_changed();
}

void Session::select(SliceId slice) {
  if (!store_ || (slice != kNoSlice && slice >= store_->size())) slice = kNoSlice;
  if (slice == selected_) return;
  selected_ = slice;
  Q_EMIT selection_changed();
}

TimeRange Session::range_or_all() const {
  if (range_) return *range_;
  return store_ ? store_->range() : TimeRange{0, 1};
}

void Session::select_range(std::optional<TimeRange> range) {
  if (range && range->begin > range->end) std::swap(range->begin, range->end);
  if (range && range->begin == range->end) range.reset();
  if (range == range_) return;
  range_ = range;
  Q_EMIT range_changed();
}

void Session::search(const QString& words) {
  words_ = words.trimmed();
  if (store_ && !words_.isEmpty()) {
    return searching_.ask([store = store_, words = words_.toStdString()](std::stop_token stop) {
      return gputwin::search(*store, words, kMostHits, stop);
    });
  }
  searching_.drop();
  hits_ = {};
  Q_EMIT hits_changed();
}

void Session::show_path(bool on) {
  path_shown_ = on && store_;
  if (path_shown_ && path_.empty() && !tracing_.busy()) {
    tracing_.ask(
        [store = store_](std::stop_token) { return critical_path(*store, store->range()); });
  }
  Q_EMIT path_changed();
}

}  // namespace gputwin::gui
