// The window: views around one timeline, all actions as commands.
#pragma once

#include <QDockWidget>
#include <QFutureWatcher>
#include <QLineEdit>
#include <QMainWindow>
#include <QPlainTextEdit>
#include <QStackedWidget>
#include <QTabWidget>
#include <QTextBrowser>

#include "gui/commands.h"
#include "gui/panels.h"
#include "gui/scenario_panel.h"
#include "gui/session.h"
#include "gui/timeline.h"

namespace gputwin::gui {

class CompareView;
class MemoryView;
class SearchView;
class TopologyView;

/// What reading a trace in the background gave: a store, or why not.
struct Opened {
  std::shared_ptr<const Store> store;
  QString problem;
};

class MainWindow : public QMainWindow {
  Q_OBJECT

 public:
  MainWindow();
  ~MainWindow() override;

  /// Opens a trace in the background; what was open stays until it is there.
  void open(const QString& path);
  /// Opens a trace beside the open one, as A, to compare with.
  void open_baseline(const QString& path);
  bool busy() const;
  void show_store(std::shared_ptr<const Store> store);

  Session& session() { return session_; }
  Commands& commands() { return commands_; }
  Timeline& timeline() { return *timeline_; }
  ScenarioPanel& scenario() { return *scenario_; }
  TablePanel& table() { return *table_; }
  BreakdownPanel& breakdown() { return *breakdown_; }
  CompareView& compare() { return *compare_; }
  MemoryView& memory() { return *memory_; }
  TopologyView& topology() { return *topology_; }
  SearchView& search() { return *search_; }
  QLineEdit& omnibox() { return *omnibox_; }
  QString message() const { return message_; }

  bool export_to(const QString& path);
  /// The view (window, grouping, marks, row height) as JSON, and back.
  QString view_json() const;
  bool apply_view(const QString& json);

 protected:
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;

 private:
  void make_docks();
  void make_commands();
  void make_view_commands();
  void make_move_commands();
  void make_menus();
  void make_start_page();
  void omnibox_entered();
  void run_finished(const RunEnd& end);
  void reading_done();
  void read(const QString& path, bool baseline);
  void tell(const QString& text, bool bad = false);
  void ask_open(bool baseline);
  void ask_export();
  void ask_note();
  void switch_theme(bool dark);
  void show_help();
  QString html_report() const;
  QString timeline_svg() const;
  QDockWidget* dock(const QString& title, QWidget* widget, Qt::DockWidgetArea area);

  Session session_;
  Commands commands_;
  Timeline* timeline_;
  Overview* overview_;
  ScenarioPanel* scenario_;
  SelectionPanel* selection_;
  BreakdownPanel* breakdown_;
  TablePanel* table_;
  CompareView* compare_;
  MemoryView* memory_;
  TopologyView* topology_;
  SearchView* search_;
  QPlainTextEdit* log_;
  QTextBrowser* help_;
  QStackedWidget* centre_;
  QTabWidget* tabs_;
  QLineEdit* omnibox_;
  QString message_;
  QFutureWatcher<Opened> reader_;
  bool reading_ = false, reading_baseline_ = false;
  bool go_to_hit_ = false;  // once a search has its answer
};

}  // namespace gputwin::gui
