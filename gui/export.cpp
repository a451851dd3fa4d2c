// MainWindow: pictures, drawings, reports, tables and saved views.
#include <QBuffer>
#include <QFile>
#include <QJsonArray>
#include <QJsonDocument>
#include <QJsonObject>
#include <QSaveFile>

#include "gui/main_window.h"
#include "gui/number_text.h"
#include "gui/theme.h"

namespace gputwin::gui {

namespace {

constexpr int kMaxSvgSlices = 50'000;

}  // namespace

QString MainWindow::timeline_svg() const {
  const Store& store = *session_.store();
  const QRect c = timeline_->canvas();
  const Theme& t = theme();
  QString out = QString(
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%1\" height=\"%2\" "
                    "font-family=\"DejaVu Sans, sans-serif\" font-size=\"11\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"%3\"/>\n")
                    .arg(timeline_->width())
                    .arg(timeline_->height())
                    .arg(t.ground.name());
  int drawn = 0;
  const auto& rows = timeline_->rows();
  const auto [first, last] = rows.visible(timeline_->scroll(), timeline_->scroll() + c.height());
  for (int r = first; r < last; ++r) {
    const Row& row = rows.rows()[static_cast<std::size_t>(r)];
    const int y = c.top() + row.top - timeline_->scroll();
    out += QString("<text x=\"8\" y=\"%1\" fill=\"%2\">%3</text>\n")
               .arg(y + 13)
               .arg(t.text.name(), text(row.label).toHtmlEscaped());
    if (row.kind != RowKind::Track) continue;
    const auto time = [this](double x) { return static_cast<Ps>(timeline_->time_at(x)); };
    const auto [from, until] =
        store.overlapping(store.tracks[row.id], time(c.left()), time(c.right()));
    double edge = -1;
    for (SliceId s = from; s < until && drawn < kMaxSvgSlices; ++s) {
      const double left =
          std::max<double>(c.left(), timeline_->x_of(static_cast<double>(store.start(s))));
      const double right =
          std::min<double>(c.right(), timeline_->x_of(static_cast<double>(store.end(s))));
      if (right - edge < 0.25) continue;  // would not be seen
      edge = right;
      ++drawn;
      out += QString(
                 "<rect x=\"%1\" y=\"%2\" width=\"%3\" height=\"%4\" fill=\"%5\"><title>%6, %7"
                 "</title></rect>\n")
                 .arg(left, 0, 'f', 2)
                 .arg(y)
                 .arg(std::max(0.25, right - left), 0, 'f', 2)
                 .arg(row.height - 1)
                 .arg(t.of(store.kind(s)).name(), text(store.name(s)).toHtmlEscaped(),
                      time_text(store.duration(s)));
    }
  }
  return out + "</svg>\n";
}

QString MainWindow::html_report() const {
  const Store& store = *session_.store();
  QByteArray png;
  QBuffer buffer(&png);
  buffer.open(QIODevice::WriteOnly);
  timeline_->grab().save(&buffer, "PNG");
  QString html = QString(
                     "<!doctype html><meta charset=\"utf-8\"><title>%1</title><body "
                     "style=\"font-family:sans-serif;max-width:75em;margin:2em auto\"><h1>%1</h1>")
                     .arg(text(store.title).toHtmlEscaped());
  html += "<table>";
  for (const auto& [name, value] : result_figures(store.result_json)) {
    html += QString("<tr><td>%1</td><td><b>%2</b></td></tr>").arg(name, value);
  }
  html += "</table><h2>Where the time goes</h2><table>";
  for (const Bar& bar : breakdown_->run_bars().bars()) {
    html += QString("<tr><td>%1</td><td>%2</td></tr>").arg(bar.name, bar.figure);
  }
  html += QString(
              "</table><h2>Timeline</h2><img style=\"max-width:100%\" "
              "src=\"data:image/png;base64,%1\"><h2>Slices by %2</h2><table><tr>")
              .arg(QString::fromLatin1(png.toBase64()), table_->grouping().currentText().mid(3));
  const GroupTableModel& model = table_->model();
  for (int c = 0; c < model.columnCount(); ++c) {
    html += "<th align=left>" + model.headerData(c, Qt::Horizontal, Qt::DisplayRole).toString();
  }
  for (int r = 0; r < std::min(200, model.rowCount()); ++r) {
    html += "<tr>";
    for (int c = 0; c < model.columnCount(); ++c) {
      html += "<td>" + model.data(model.index(r, c), Qt::DisplayRole).toString().toHtmlEscaped();
    }
  }
  return html + "</table></body>\n";
}

bool MainWindow::export_to(const QString& path) {
  if (session_.store() == nullptr) {
    tell("There is nothing to export yet", true);
    return false;
  }
  QSaveFile file(path);
  bool ok = file.open(QIODevice::WriteOnly);
  if (path.endsWith(".svg")) {
    ok = ok && file.write(timeline_svg().toUtf8()) > 0;
  } else if (path.endsWith(".html")) {
    ok = ok && file.write(html_report().toUtf8()) > 0;
  } else if (path.endsWith(".csv")) {
    ok = ok && file.write(table_->csv().toUtf8()) > 0;
  } else if (path.endsWith(".png")) {
    ok = ok && grab().save(&file, "PNG");
  } else {
    tell(path + " is no kind of file that is written: end it in .png, .svg, .html or .csv", true);
    return false;
  }
  ok = ok && file.commit();
  tell(ok ? "wrote " + path : path + " cannot be written: " + file.errorString(), !ok);
  return ok;
}

QString MainWindow::view_json() const {
  QJsonArray marks;
  for (const Mark& mark : session_.marks) {
    marks.append(QJsonObject{{"at_ps", QString::number(mark.at)}, {"note", mark.note}});
  }
  QJsonObject view{
      {"gputwin_view", 1},
      {"trace", session_.store() != nullptr ? text(session_.store()->title) : QString()},
      {"from_ps", timeline_->window().from},
      {"ps_per_pixel", timeline_->window().per_pixel},
      {"scroll", timeline_->scroll()},
      {"row_height", timeline_->rows().row_height()},
      {"grouping", static_cast<int>(timeline_->rows().grouping())},
      {"search", session_.words()},
      {"marks", marks}};
  if (session_.range()) {
    view["range_ps"] = QJsonArray{QString::number(session_.range()->begin),
                                  QString::number(session_.range()->end)};
  }
  return QString::fromUtf8(QJsonDocument(view).toJson());
}

bool MainWindow::apply_view(const QString& json) {
  const QJsonObject view = QJsonDocument::fromJson(json.toUtf8()).object();
  if (view["gputwin_view"].toInt() != 1) return false;
  timeline_->set_grouping(static_cast<Grouping>(std::clamp(view["grouping"].toInt(), 0, 3)));
  timeline_->set_row_height(view["row_height"].toInt(18));
  timeline_->set_window({view["from_ps"].toDouble(), view["ps_per_pixel"].toDouble(1)});
  timeline_->scroll_to(view["scroll"].toInt());
  session_.search(view["search"].toString());
  session_.marks.clear();
  for (const QJsonValue& mark : view["marks"].toArray()) {
    session_.marks.push_back({mark["at_ps"].toString().toLongLong(), mark["note"].toString()});
  }
  Q_EMIT session_.marks_changed();
  const QJsonArray range = view["range_ps"].toArray();
  if (range.size() == 2) {
    session_.select_range(
        TimeRange{range[0].toString().toLongLong(), range[1].toString().toLongLong()});
  }
  return true;
}

}  // namespace gputwin::gui
