// What all tables of figures have in common.
#pragma once

#include <QComboBox>
#include <QHeaderView>
#include <QTableView>

#include "gui/number_text.h"
#include "sim/trace/queries.h"

namespace gputwin::gui {

/// Rows are chosen whole, nothing is edited in place, no grid. `name` is what a screen reader says.
inline void style_table(QTableView& table, const QString& name) {
  table.setAccessibleName(name);
  table.setEditTriggers(QAbstractItemView::NoEditTriggers);
  table.setSelectionBehavior(QAbstractItemView::SelectRows);
  table.setShowGrid(false);
  table.verticalHeader()->hide();
  table.verticalHeader()->setDefaultSectionSize(20);
}

/// First column to the left, figures to the right.
inline Qt::Alignment cell_alignment(int column) {
  return (column == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter;
}

/// "by operation", "by kind", …; the data of an entry is its GroupBy.
inline QComboBox* grouping_choice(GroupBy first, const QString& name) {
  auto* choice = new QComboBox;
  for (std::size_t by = 0; by < kGroupings; ++by) {
    choice->addItem("by " + text(label(static_cast<GroupBy>(by))), static_cast<int>(by));
  }
  choice->setCurrentIndex(static_cast<int>(first));
  choice->setAccessibleName(name);
  return choice;
}

inline GroupBy chosen_grouping(const QComboBox& choice) {
  return static_cast<GroupBy>(choice.currentData().toInt());
}

}  // namespace gputwin::gui
