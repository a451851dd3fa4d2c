// Where in a pre-allocated arena the buffers of one rank lie, over time.
#pragma once

#include <QWidget>
#include <vector>

#include "gui/session.h"
#include "sim/trace/address_map.h"

namespace gputwin::gui {

/// Addresses upwards, time to the right; a block is filled while its buffer is in use. One line of
/// text where the run places no buffer itself.
class AddressMap : public QWidget {
 public:
  explicit AddressMap(Session& session, QWidget* parent = nullptr);
  /// Blocks of the open trace, by address.
  void set(std::vector<PlacedBlock> blocks);
  const std::vector<PlacedBlock>& blocks() const { return blocks_; }
  /// "3 buffers in 12.0 GiB; at most 9.5 GiB of it in use at once", or that there is none.
  QString summary() const;
  /// Bytes from address 0 to the end of the highest block, and the most that is in use at once.
  std::int64_t extent() const { return extent_; }
  std::int64_t most_in_use() const { return most_; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;

 private:
  QRect plot() const;
  void paint_block(QPainter& painter, const PlacedBlock& block) const;
  Session& session_;
  std::vector<PlacedBlock> blocks_;
  std::int64_t extent_ = 0, most_ = 0;
};

}  // namespace gputwin::gui
