#include "gui/commands.h"

namespace gputwin::gui {

QAction* Commands::add(const QString& name, const QString& title, const QString& key,
                       std::function<void()> run, const QString& tip) {
  auto* action = new QAction(title, owner_);
  action->setObjectName(name);
  QList<QKeySequence> keys;
  for (const QString& one : key.split(' ', Qt::SkipEmptyParts)) keys << QKeySequence(one);
  action->setShortcuts(keys);
  action->setShortcutContext(Qt::WindowShortcut);
  const QString plain = QString(title).remove('&');
  const QString shown = keys.isEmpty() ? "" : " (" + keys.first().toString() + ")";
  action->setToolTip((tip.isEmpty() ? plain : tip) + shown);
  action->setStatusTip(action->toolTip());
  QObject::connect(action, &QAction::triggered, owner_, [run = std::move(run)] { run(); });
  owner_->addAction(action);
  actions_[name] = action;
  order_ << name;
  return action;
}

QAction* Commands::at(const QString& name) const {
  const auto found = actions_.find(name);
  return found == actions_.end() ? nullptr : found->second;
}

bool Commands::trigger(const QString& name) const {
  QAction* action = at(name);
  if (action == nullptr || !action->isEnabled()) return false;
  action->trigger();
  return true;
}

QAction* Commands::best(const QString& words) const {
  const QString wanted = words.trimmed().toLower();
  if (wanted.isEmpty()) return nullptr;
  for (const bool begins : {true, false}) {
    for (const QString& name : order_) {
      QAction* action = at(name);
      const QString title = action->text().remove('&').toLower();
      const bool fits = begins ? name.startsWith(wanted) || title.startsWith(wanted)
                               : name.contains(wanted) || title.contains(wanted);
      if (fits) return action;
    }
  }
  return nullptr;
}

QStringList Commands::names() const { return order_; }

QString Commands::help_html() const {
  QString html =
      "<table cellspacing=0 cellpadding=4><tr><th align=left>key</th>"
      "<th align=left>does</th><th align=left>command</th></tr>";
  for (const QString& name : order_) {
    const QAction* action = at(name);
    QStringList keys;
    for (const QKeySequence& key : action->shortcuts()) keys << key.toString();
    html +=
        QString("<tr><td><b>%1</b></td><td>%2</td><td>%3</td></tr>")
            .arg(keys.join(", ").toHtmlEscaped(), action->text().remove('&').toHtmlEscaped(), name);
  }
  return html + "</table>";
}

}  // namespace gputwin::gui
