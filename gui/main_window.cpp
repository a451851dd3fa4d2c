#include "gui/main_window.h"

#include <QApplication>
#include <QCompleter>
#include <QDragEnterEvent>
#include <QFileDialog>
#include <QInputDialog>
#include <QMenuBar>
#include <QMimeData>
#include <QPushButton>
#include <QScrollArea>
#include <QStatusBar>
#include <QToolBar>
#include <QVBoxLayout>
#include <QtConcurrent/QtConcurrentRun>

#include "gui/compare_view.h"
#include "gui/memory_view.h"
#include "gui/number_text.h"
#include "gui/search_view.h"
#include "gui/theme.h"
#include "gui/topology_view.h"
#include "sim/core/error.h"
#include "sim/trace/chrome_import.h"

namespace gputwin::gui {

namespace {

struct Example {
  const char *scenario, *title, *about;
};
constexpr Example kExamples[] = {
    {"gpt3_6_7b__a100_2x8__tp2_pp2_dp4_straggler", "A slow GPU in a small job",
     "GPT-3 6.7B on 16 A100. One GPU is 20 % slower: see who waits for it, and where."},
    {"gpt3_175b__a100_128x8__tp8_pp16_dp8", "GPT-3 175B on 1,024 GPUs",
     "16 pipeline stages. Where do the bubble and the tensor-parallel all-reduces cost time?"},
    {"llama2_7b__a100_1x8__tp1_pp1_dp8_zero3", "Sharded Llama 2 7B on one node",
     "ZeRO-3 on 8 A100: gathers under computation, memory by class over time."}};

Opened read_trace(const QString& path) {
  try {
    return {std::make_shared<const Store>(open_trace(path.toStdString())), ""};
  } catch (const InputError& error) {
    return {nullptr, text(std::string(error.what()))};
  } catch (const std::bad_alloc&) {
    return {nullptr, path + ": needs more memory than there is"};
  } catch (const std::exception& error) {
    return {nullptr, path + ": cannot be opened: " + error.what()};
  }
}

}  // namespace

MainWindow::MainWindow()
    : commands_(this),
      timeline_(new Timeline(session_)),
      scenario_(new ScenarioPanel),
      selection_(new SelectionPanel(session_)),
      breakdown_(new BreakdownPanel(session_)),
      table_(new TablePanel(session_)),
      compare_(new CompareView(session_)),
      memory_(new MemoryView(session_)),
      topology_(new TopologyView(session_)),
      search_(new SearchView),
      log_(new QPlainTextEdit),
      help_(new QTextBrowser),
      centre_(new QStackedWidget),
      tabs_(new QTabWidget),
      omnibox_(new QLineEdit) {
  setWindowTitle("gputwin");
  setAcceptDrops(true);
  resize(1500, 900);
  overview_ = new Overview(session_, *timeline_);
  auto* page = new QWidget;
  auto* column = new QVBoxLayout(page);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addWidget(overview_);
  column->addWidget(timeline_, 1);
  make_start_page();
  centre_->addWidget(page);
  centre_->addWidget(help_);
  help_->setAccessibleName("Help");
  setCentralWidget(centre_);
  make_docks();
  make_commands();
  make_view_commands();
  make_move_commands();
  make_menus();
  connect(timeline_, &Timeline::hint, this, [this](const QString& t) { tell(t); });
  connect(search_, &SearchView::use_layout, scenario_, &ScenarioPanel::use_layout);
  connect(search_, &SearchView::search_wanted, this, [this] {
    if (scenario_->form().document().empty()) return tell("Choose a scenario first", true);
    search_->start(scenario_->written());
  });
  connect(scenario_, &ScenarioPanel::finished, this, &MainWindow::run_finished);
  connect(scenario_, &ScenarioPanel::log, log_, &QPlainTextEdit::appendPlainText);
  connect(&reader_, &QFutureWatcher<Opened>::finished, this, &MainWindow::reading_done);
  connect(&session_, &Session::hits_changed, this, [this] {
    const SearchHits& hits = session_.hits();
    if (session_.words().isEmpty()) return;
    tell(hits.total == 0
             ? QString("Nothing matches “%1”").arg(session_.words())
             : QString("%1 slices match “%2”, %3 together; N and Shift+N step through them")
                   .arg(count_text(hits.total), session_.words(), time_text(hits.time)),
         hits.total == 0);
    if (!std::exchange(go_to_hit_, false) || hits.total == 0) return;
    timeline_->next_hit(1);
    timeline_->setFocus();
  });
  connect(&session_, &Session::selection_changed, this, [this] {
    if (session_.selected() != kNoSlice) tell(timeline_->summary().section(". ", 1));
  });
}

bool MainWindow::busy() const {
  return reading_ || session_.busy() || table_->busy() || breakdown_->busy() || compare_->busy();
}

MainWindow::~MainWindow() { reader_.waitForFinished(); }

QDockWidget* MainWindow::dock(const QString& title, QWidget* widget, Qt::DockWidgetArea area) {
  auto* made = new QDockWidget(title, this);
  made->setObjectName(title);
  made->setWidget(widget);
  addDockWidget(area, made);
  return made;
}

void MainWindow::make_docks() {
  setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
  setCorner(Qt::BottomRightCorner, Qt::RightDockWidgetArea);
  dock("Scenario", scenario_, Qt::LeftDockWidgetArea)->setMinimumWidth(300);
  QDockWidget* selection = dock("Selection", selection_, Qt::RightDockWidgetArea);
  selection->setMinimumWidth(280);
  auto* area = new QScrollArea;
  area->setWidget(breakdown_);
  area->setWidgetResizable(true);
  area->setFrameShape(QFrame::NoFrame);
  area->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  QDockWidget* breakdown = dock("Breakdown", area, Qt::RightDockWidgetArea);
  resizeDocks({selection, breakdown}, {330, 600}, Qt::Vertical);
  log_->setReadOnly(true);
  log_->setMaximumBlockCount(20'000);
  log_->setAccessibleName("Log");
  tabs_->setAccessibleName("Views");
  tabs_->addTab(table_, "Table");
  tabs_->addTab(compare_, "Compare");
  tabs_->addTab(memory_, "Memory");
  tabs_->addTab(topology_, "Topology");
  tabs_->addTab(search_, "Search results");
  tabs_->addTab(log_, "Log");
  dock("Views", tabs_, Qt::BottomDockWidgetArea)->setMinimumHeight(230);
}

void MainWindow::make_start_page() {
  auto* page = new QWidget;
  page->setObjectName("start");
  auto* layout = new QVBoxLayout(page);
  layout->setContentsMargins(60, 40, 60, 40);
  auto* title = new QLabel(
      "<h2>gputwin</h2><p>How fast will a training job run, does it fit, and "
      "where does the time go? Start with an example, open a trace (Ctrl+O), "
      "or drop one here.</p>");
  title->setWordWrap(true);
  layout->addWidget(title);
  for (const Example& example : kExamples) {
    auto* button = new QPushButton(QString("%1\n%2").arg(example.title, example.about));
    button->setObjectName(example.scenario);
    button->setAccessibleName(example.title);
    button->setStyleSheet("text-align: left; padding: 12px");
    button->setMinimumHeight(58);
    layout->addWidget(button);
    connect(button, &QPushButton::clicked, this, [this, name = QString(example.scenario)] {
      if (scenario_->load(name)) scenario_->run();
    });
  }
  layout->addStretch();
  centre_->addWidget(page);
}

void MainWindow::make_menus() {
  const auto menu = [this](const QString& title, std::initializer_list<const char*> names) {
    QMenu* made = menuBar()->addMenu(title);
    for (const char* name : names) {
      if (QString(name) == "-")
        made->addSeparator();
      else
        made->addAction(commands_.at(name));
    }
  };
  menu("&File", {"open", "compare-with", "-", "open-scenario", "save-scenario", "open-results", "-",
                 "export", "save-view", "load-view", "-", "quit"});
  menu("&Run", {"edit-layout", "run", "cancel"});
  menu("&View", {"fit-all", "fit-selection", "zoom-in",     "zoom-out",   "undo-view",
                 "-",       "group-rank",    "group-stage", "group-node", "group-meaning",
                 "-",       "taller-rows",   "lower-rows",  "open-all",   "close-all",
                 "-",       "table",         "compare",     "memory",     "topology",
                 "results", "log",           "-",           "dark",       "light"});
  menu("&Go", {"search", "palette", "next-hit", "previous-hit", "-", "next-slice", "previous-slice",
               "flow-forward", "flow-back", "flow-chain", "-", "critical-path", "next-on-path",
               "previous-on-path", "-", "mark", "note", "pin", "clear"});
  menu("&Help", {"help"});
  auto* bar = addToolBar("Tools");
  bar->setObjectName("Tools");
  bar->setMovable(false);
  for (const char* name : {"open", "run", "cancel", "compare-with"})
    bar->addAction(commands_.at(name));
  omnibox_->setPlaceholderText(
      "search slices: fc1 mb3 layer7 >2ms   |   > command   |   @ row   (key /)");
  omnibox_->setAccessibleName("Search, command or row");
  omnibox_->setClearButtonEnabled(true);
  omnibox_->setMinimumWidth(480);
  bar->addWidget(omnibox_);
  for (const char* name : {"critical-path", "fit-all"}) bar->addAction(commands_.at(name));
  QStringList offers;
  for (const QString& name : commands_.names()) offers << "> " + name;
  auto* completer = new QCompleter(offers, this);
  completer->setCaseSensitivity(Qt::CaseInsensitive);
  completer->setFilterMode(Qt::MatchContains);
  omnibox_->setCompleter(completer);
  connect(omnibox_, &QLineEdit::returnPressed, this, &MainWindow::omnibox_entered);
}

void MainWindow::omnibox_entered() {
  const QString typed = omnibox_->text().trimmed();
  if (typed.startsWith('>')) {
    QAction* action = commands_.best(typed.mid(1));
    omnibox_->clear();
    timeline_->setFocus();
    if (action == nullptr) return tell("No such command: " + typed.mid(1), true);
    action->trigger();
  } else if (typed.startsWith('@')) {
    if (!timeline_->reveal_row(typed.mid(1).trimmed())) tell("No such row: " + typed.mid(1), true);
    timeline_->setFocus();
  } else {
    go_to_hit_ = true;
    session_.search(typed);
  }
}

void MainWindow::tell(const QString& text, bool bad) {
  message_ = text;
  statusBar()->setStyleSheet(bad ? "color: " + theme().warn.name() : "");
  statusBar()->showMessage(text.section('\n', 0, 0));
  if (bad) log_->appendPlainText(text);
}

void MainWindow::read(const QString& path, bool baseline) {
  if (reading_) return tell("Another trace is being read; try again in a moment", true);
  reading_ = true;
  reading_baseline_ = baseline;
  tell("reading " + path + " …");
  reader_.setFuture(QtConcurrent::run(read_trace, path));
}

void MainWindow::open(const QString& path) { read(path, false); }
void MainWindow::open_baseline(const QString& path) { read(path, true); }

void MainWindow::reading_done() {
  const Opened opened = reader_.result();
  reading_ = false;
  if (!opened.store) return tell(opened.problem, true);
  if (reading_baseline_) {
    compare_->set_baseline(opened.store);
    tabs_->setCurrentWidget(compare_);
    return tell("A is " + text(opened.store->title));
  }
  show_store(opened.store);
}

void MainWindow::show_store(std::shared_ptr<const Store> store) {
  if (session_.store() != nullptr && !compare_->has_baseline()) {
    compare_->set_baseline(session_.shared_store());
  }
  centre_->setCurrentIndex(1);
  session_.set_store(store);
  setWindowTitle(text(store->title) + " — gputwin");
  QString said = QString("%1 slices, %2")
                     .arg(count_text(static_cast<std::int64_t>(store->size())),
                          time_text(store->range().length()));
  for (const std::string& warning : store->warnings) {
    log_->appendPlainText(text(store->title) + ": " + text(warning));
  }
  if (!store->warnings.empty())
    said += QString("; %1 (see the log)").arg(text(store->warnings.front()));
  tell(said, !store->warnings.empty());
  if (scenario_->form().document().empty() && !store->scenario_json.empty()) {
    scenario_->load_text(store->scenario_json, text(store->title));
  }
  timeline_->setFocus();
}

void MainWindow::run_finished(const RunEnd& end) {
  if (!end.ok) {
    tell(end.message, !end.cancelled);
    return;
  }
  if (session_.store() != nullptr) compare_->set_baseline(session_.shared_store());
  open(end.trace);
}

void MainWindow::ask_open(bool baseline) {
  const QString path = QFileDialog::getOpenFileName(
      this, baseline ? "Compare with" : "Open a trace", {},
      "Traces (*.gtr *.json *.json.gz *.pt.trace.json *.gz);;All files (*)");
  if (!path.isEmpty()) read(path, baseline);
}

void MainWindow::ask_export() {
  const QString path = QFileDialog::getSaveFileName(
      this, "Export the view", "timeline.png",
      "Picture (*.png);;Drawing (*.svg);;Report (*.html);;Table (*.csv)");
  if (!path.isEmpty()) export_to(path);
}

void MainWindow::ask_note() {
  bool ok = false;
  const QString note =
      QInputDialog::getText(this, "Note", "Note at the selection:", QLineEdit::Normal, {}, &ok);
  if (!ok || session_.store() == nullptr) return;
  const Ps at = session_.selected() != kNoSlice ? session_.store()->start(session_.selected())
                                                : session_.range_or_all().begin;
  session_.marks.push_back({at, note});
  Q_EMIT session_.marks_changed();
}

void MainWindow::switch_theme(bool dark) {
  set_theme(dark);
  timeline_->theme_changed();
  overview_->invalidate();
  Q_EMIT session_.range_changed();  // bars take their colours anew
  for (QWidget* widget : {static_cast<QWidget*>(compare_), static_cast<QWidget*>(memory_),
                          static_cast<QWidget*>(topology_)}) {
    widget->update();
  }
}

void MainWindow::show_help() {
  if (centre_->currentWidget() == help_) {
    centre_->setCurrentIndex(session_.store() != nullptr ? 1 : 0);
    return;
  }
  help_->setHtml(
      "<h2>Keys and commands</h2><p>? closes this page.</p><p>In the timeline: <b>W S</b> zoom at "
      "the mouse, <b>A D</b> move, with Shift faster; wheel scrolls rows, <b>Ctrl+wheel</b> zooms, "
      "<b>Shift+wheel</b> and <b>Shift+drag</b> move; <b>drag</b> selects a range, a click a "
      "slice, "
      "a double click zooms to it; <b>Esc</b> clears.</p><p>The field on top searches: words of a "
      "name, kind, phase; mb3, layer7, rank2; &gt;2ms, &lt;5us. It begins with &gt; for a command, "
      "with @ for a row.</p><p>Colour is the kind of work; communication is hatched as well. Where "
      "slices are narrower than a pixel, strength is the share of the pixel that they cover.</p>" +
      commands_.help_html());
  centre_->setCurrentWidget(help_);
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void MainWindow::dropEvent(QDropEvent* event) {
  for (const QUrl& url : event->mimeData()->urls()) {
    if (url.isLocalFile()) return open(url.toLocalFile());
  }
}

}  // namespace gputwin::gui
