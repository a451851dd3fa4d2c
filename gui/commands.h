// Everything the program can do, by name: menus, keys, the omnibox, --command and tests use these.
#pragma once

#include <QAction>
#include <QWidget>
#include <functional>
#include <map>

namespace gputwin::gui {

class Commands {
 public:
  explicit Commands(QWidget* owner) : owner_(owner) {}

  /// `key` as in QKeySequence, or empty. The title stands in menus; name is lower case with dashes.
  QAction* add(const QString& name, const QString& title, const QString& key,
               std::function<void()> run, const QString& tip = {});
  QAction* at(const QString& name) const;
  bool trigger(const QString& name) const;
  /// The command whose name or title begins with, or holds, `words`; null if none does.
  QAction* best(const QString& words) const;
  QStringList names() const;
  /// Rows of name, title and keys for the help page.
  QString help_html() const;

 private:
  QWidget* owner_;
  std::map<QString, QAction*> actions_;
  QStringList order_;
};

}  // namespace gputwin::gui
