// MainWindow: its commands.
#include <QApplication>
#include <QFile>
#include <QFileDialog>
#include <QScrollArea>

#include "gui/compare_view.h"
#include "gui/main_window.h"
#include "gui/memory_view.h"
#include "gui/search_view.h"
#include "gui/theme.h"
#include "gui/topology_view.h"

namespace gputwin::gui {

void MainWindow::make_commands() {
  commands_.add(
      "open", "&Open trace…", "Ctrl+O", [this] { ask_open(false); },
      "Open a .gtr file, or a trace of gputwin or PyTorch's profiler (.json, .json.gz)");
  commands_.add(
      "compare-with", "Compare &with…", "Ctrl+Shift+O", [this] { ask_open(true); },
      "Open a second trace as A and compare");
  commands_.add("open-scenario", "Open &scenario…", "", [this] {
    const QString path = QFileDialog::getOpenFileName(this, "Open a scenario", {}, "*.json");
    if (!path.isEmpty()) scenario_->load(path);
  });
  commands_.add("save-scenario", "&Save scenario as…", "Ctrl+S", [this] {
    const QString path = QFileDialog::getSaveFileName(this, "Save the scenario", "scenario.json");
    if (!path.isEmpty() && scenario_->save(path)) tell("saved " + path);
  });
  commands_.add("open-results", "Open search &results…", "", [this] {
    const QString path = QFileDialog::getOpenFileName(this, "Open a search.json", {}, "*.json");
    if (path.isEmpty()) return;
    search_->open(path);
    tabs_->setCurrentWidget(search_);
  });
  commands_.add(
      "export", "&Export view…", "Ctrl+E", [this] { ask_export(); },
      "PNG, SVG, HTML report, or CSV of the table");
  commands_.add("save-view", "Save view…", "", [this] {
    const QString path = QFileDialog::getSaveFileName(this, "Save the view", "view.json");
    QFile file(path);
    if (path.isEmpty()) return;
    if (!file.open(QIODevice::WriteOnly) || file.write(view_json().toUtf8()) < 0) {
      tell(path + " cannot be written: " + file.errorString(), true);
    }
  });
  commands_.add("load-view", "Load view…", "", [this] {
    const QString path = QFileDialog::getOpenFileName(this, "Load a view", {}, "*.json");
    QFile file(path);
    if (path.isEmpty()) return;
    if (!file.open(QIODevice::ReadOnly) || !apply_view(QString::fromUtf8(file.readAll()))) {
      tell(path + " is no saved view of gputwin", true);
    }
  });
  commands_.add("quit", "&Quit", "Ctrl+Q", [this] { close(); });
  commands_.add(
      "run", "&Run", "Ctrl+R", [this] { scenario_->run(); }, "Simulate the scenario");
  commands_.add(
      "cancel", "&Cancel", "Ctrl+.", [this] { scenario_->cancel(); }, "Cancel the run");
  commands_.add(
      "edit-layout", "Edit the &layout", "Ctrl+L",
      [this] {
        QWidget* field = scenario_->form().field("/layout/tp");
        if (field == nullptr) return;
        if (auto* area = scenario_->form().findChild<QScrollArea*>()) {
          area->ensureWidgetVisible(field);
        }
        field->setFocus(Qt::ShortcutFocusReason);
      },
      "Go to the degree of tensor parallelism; Tab leads to the others");
  commands_.add("help", "&Keys and commands", "? F1", [this] { show_help(); });
}

void MainWindow::make_view_commands() {
  commands_.add(
      "fit-all", "Fit &all", "0", [this] { timeline_->fit_all(); }, "Show the whole run");
  commands_.add("fit-selection", "&Fit selection", "F", [this] { timeline_->fit_selection(); });
  commands_.add("zoom-in", "Zoom in", "Ctrl++ Ctrl+=", [this] {
    timeline_->zoom(0.5, timeline_->canvas().center().x());
  });
  commands_.add("zoom-out", "Zoom out", "Ctrl+-",
                [this] { timeline_->zoom(2, timeline_->canvas().center().x()); });
  commands_.add("undo-view", "&Back to the view before", "Ctrl+Z",
                [this] { timeline_->undo_view(); });
  commands_.add("group-rank", "Group by rank", "",
                [this] { timeline_->set_grouping(Grouping::Rank); });
  commands_.add("group-stage", "Group by pipeline stage", "",
                [this] { timeline_->set_grouping(Grouping::Stage); });
  commands_.add("group-node", "Group by node", "",
                [this] { timeline_->set_grouping(Grouping::Node); });
  commands_.add(
      "group-meaning", "Group by meaning", "",
      [this] { timeline_->set_grouping(Grouping::Meaning); },
      "All compute streams together, all tensor-parallel ones, …");
  commands_.add("taller-rows", "Taller rows",
                "+ =", [this] { timeline_->set_row_height(timeline_->rows().row_height() + 3); });
  commands_.add("lower-rows", "Lower rows", "-",
                [this] { timeline_->set_row_height(timeline_->rows().row_height() - 3); });
  commands_.add("open-all", "Open all groups", "", [this] {
    timeline_->rows().set_all_open(true);
    timeline_->rows_changed();
  });
  commands_.add("close-all", "Close all groups", "", [this] {
    timeline_->rows().set_all_open(false);
    timeline_->rows_changed();
  });
  commands_.add("dark", "Dark", "", [this] { switch_theme(true); });
  commands_.add("light", "Light", "", [this] { switch_theme(false); });
  commands_.add("table", "Show the table", "Ctrl+1", [this] { tabs_->setCurrentWidget(table_); });
  commands_.add("compare", "Show the comparison", "Ctrl+2",
                [this] { tabs_->setCurrentWidget(compare_); });
  commands_.add("memory", "Show memory", "Ctrl+3", [this] { tabs_->setCurrentWidget(memory_); });
  commands_.add("topology", "Show the topology", "Ctrl+4",
                [this] { tabs_->setCurrentWidget(topology_); });
  commands_.add("results", "Show search results", "Ctrl+5",
                [this] { tabs_->setCurrentWidget(search_); });
  commands_.add("log", "Show the log", "Ctrl+6", [this] { tabs_->setCurrentWidget(log_); });
}

void MainWindow::make_move_commands() {
  commands_.add("search", "&Search…", "/", [this] {
    omnibox_->setFocus();
    omnibox_->selectAll();
  });
  commands_.add("palette", "Command…", "Ctrl+Shift+P", [this] {
    omnibox_->setText("> ");
    omnibox_->setFocus();
  });
  commands_.add("next-hit", "Next hit", "N", [this] { timeline_->next_hit(1); });
  commands_.add("previous-hit", "Previous hit", "Shift+N", [this] { timeline_->next_hit(-1); });
  commands_.add("next-slice", "Next slice", ".", [this] { timeline_->step(1); });
  commands_.add("previous-slice", "Previous slice", ",", [this] { timeline_->step(-1); });
  commands_.add("flow-forward", "Along the flow", "]", [this] { timeline_->follow_flow(1); });
  commands_.add("flow-back", "Against the flow", "[", [this] { timeline_->follow_flow(-1); });
  QAction* chain = commands_.add("flow-chain", "Whole flow chain", "Shift+]", [] {});
  chain->setCheckable(true);
  connect(chain, &QAction::toggled, timeline_, &Timeline::show_chain);
  QAction* path = commands_.add(
      "critical-path", "&Critical path", "C", [] {}, "Mark what decided when the run ended");
  path->setCheckable(true);
  connect(path, &QAction::toggled, &session_, &Session::show_path);
  connect(&session_, &Session::path_changed, path,
          [this, path] { path->setChecked(session_.path_shown()); });
  commands_.add("next-on-path", "Next piece of the critical path", "Ctrl+Right",
                [this] { timeline_->next_on_path(1); });
  commands_.add("previous-on-path", "Previous piece of the critical path", "Ctrl+Left",
                [this] { timeline_->next_on_path(-1); });
  commands_.add("mark", "&Mark time or slice", "M", [this] { timeline_->mark_range(); });
  commands_.add("note", "N&ote…", "Shift+M", [this] { ask_note(); });
  commands_.add("pin", "&Pin row", "P", [this] { timeline_->pin_selected(); });
  commands_.add("clear", "Clear selection, marks and hits", "Shift+Escape", [this] {
    session_.select(kNoSlice);
    session_.select_range(std::nullopt);
    session_.search("");
    session_.marks.clear();
    Q_EMIT session_.marks_changed();
  });
}

}  // namespace gputwin::gui
