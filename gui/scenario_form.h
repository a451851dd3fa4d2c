// A form for a scenario, made from its JSON Schema: every key of the schema is a field, with its
// description, range and default.
#pragma once

#include <QFormLayout>
#include <QLineEdit>
#include <QWidget>
#include <map>
#include <nlohmann/json.hpp>

namespace gputwin::gui {

using Document = nlohmann::ordered_json;

class ScenarioForm : public QWidget {
  Q_OBJECT

 public:
  /// `models`, `clusters`: names on offer.
  ScenarioForm(const Document& schema, const QStringList& models, const QStringList& clusters,
               QWidget* parent = nullptr);

  void set_document(Document document);
  const Document& document() const { return document_; }
  /// What the field of a JSON pointer shows; null if there is no such field.
  QWidget* field(const QString& pointer) const;
  QStringList pointers() const;
  /// Marks the field of a pointer (or the nearest above it) as wrong; an empty pointer clears.
  void show_error(const QString& pointer, const QString& message);

 Q_SIGNALS:
  void edited();

 private:
  void add_object(QFormLayout* layout, const Document& schema, const std::string& pointer);
  void add_field(QFormLayout* layout, const std::string& name, const Document& schema,
                 const std::string& pointer);
  void add_choice(QFormLayout* layout, const std::string& name, const QStringList& words,
                  const Document& schema, const std::string& pointer);
  void add_line(QFormLayout* layout, const std::string& name, const Document& schema,
                const std::string& pointer);
  void refresh_field(const std::string& pointer);
  void put(const std::string& pointer, const Document& value);  // discarded value: take it out

  Document document_;
  std::map<std::string, QWidget*> fields_;
  std::map<std::string, Document> schemas_;
  bool filling_ = false;
};

}  // namespace gputwin::gui
