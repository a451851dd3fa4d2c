#include "gui/scenario_form.h"

#include <QComboBox>
#include <QGroupBox>
#include <QScrollArea>
#include <QScrollBar>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/number_text.h"
#include "gui/theme.h"

namespace gputwin::gui {

namespace {

bool is_type(const Document& schema, const char* type) {
  if (!schema.contains("type")) return false;
  const Document& t = schema["type"];
  if (t.is_string()) return t == type;
  return std::find(t.begin(), t.end(), Document(type)) != t.end();
}

QString default_text(const Document& schema) {
  if (!schema.contains("default")) return "";
  const Document& d = schema["default"];
  return text(d.is_string() ? d.get<std::string>() : d.dump());
}

QString tip_of(const Document& schema) {
  QString tip =
      schema.contains("description") ? text(schema["description"].get<std::string>()) : "";
  if (schema.contains("minimum")) {
    tip += "\nfrom " + text(schema["minimum"].dump());
    if (schema.contains("maximum")) tip += " to " + text(schema["maximum"].dump());
  }
  if (!default_text(schema).isEmpty()) tip += "\ndefault: " + default_text(schema);
  return tip;
}

QString label_of(const std::string& name) {
  QString label = text(name);
  return label.replace('_', ' ');
}

}  // namespace

ScenarioForm::ScenarioForm(const Document& schema, const QStringList& models,
                           const QStringList& clusters, QWidget* parent)
    : QWidget(parent) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  auto* area = new QScrollArea;
  area->setWidgetResizable(true);
  area->setFrameShape(QFrame::NoFrame);
  area->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  layout->addWidget(area);
  auto* body = new QWidget;
  auto* stack = new QVBoxLayout(body);
  area->setWidget(body);
  auto* top = new QFormLayout;
  stack->addLayout(top);
  const Document& properties = schema["properties"];
  add_choice(top, "model", models, properties["model"], "/model");
  add_choice(top, "cluster", clusters, properties["cluster"], "/cluster");
  for (const auto& [name, sub] : properties.items()) {
    if (name == "model" || name == "cluster" || name == "schema") continue;
    if (!sub.contains("properties")) {
      add_field(top, name, sub, "/" + name);
      continue;
    }
    auto* box = new QGroupBox(label_of(name));
    auto* form = new QFormLayout(box);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    add_object(form, sub, "/" + name);
    stack->addWidget(box);
  }
  stack->addStretch();
  // Fields must not end under the scroll bar.
  area->setMinimumWidth(body->minimumSizeHint().width() +
                        area->verticalScrollBar()->sizeHint().width());
}

void ScenarioForm::add_object(QFormLayout* layout, const Document& schema,
                              const std::string& pointer) {
  for (const auto& [name, sub] : schema["properties"].items()) {
    add_field(layout, name, sub, pointer + "/" + name);
  }
}

void ScenarioForm::add_field(QFormLayout* layout, const std::string& name, const Document& schema,
                             const std::string& pointer) {
  if (schema.contains("enum")) {
    QStringList words;
    for (const Document& word : schema["enum"]) {
      words << text(word.is_string() ? word.get<std::string>() : word.dump());
    }
    add_choice(layout, name, words, schema, pointer);
  } else if (is_type(schema, "boolean")) {
    add_choice(layout, name, {"true", "false"}, schema, pointer);
  } else if (schema.contains("properties")) {
    auto* box = new QGroupBox(label_of(name));
    box->setToolTip(tip_of(schema));
    auto* form = new QFormLayout(box);
    add_object(form, schema, pointer);
    layout->addRow(box);
  } else {
    add_line(layout, name, schema, pointer);
  }
}

void ScenarioForm::add_choice(QFormLayout* layout, const std::string& name,
                              const QStringList& words, const Document& schema,
                              const std::string& pointer) {
  auto* box = new QComboBox;
  const QString fallback = default_text(schema);
  box->addItem(fallback.isEmpty() ? QString("not set") : "default: " + fallback);
  box->addItems(words);
  box->setToolTip(tip_of(schema));
  box->setAccessibleName(text(pointer).mid(1));
  box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  box->setMinimumContentsLength(12);
  box->setFocusPolicy(Qt::StrongFocus);
  layout->addRow(label_of(name), box);
  fields_[pointer] = box;
  schemas_[pointer] = schema;
  connect(box, &QComboBox::activated, this, [this, box, pointer](int index) {
    const std::string word = box->currentText().toStdString();
    if (index == 0) return put(pointer, Document::value_t::discarded);
    const bool boolean = is_type(schemas_[pointer], "boolean");
    put(pointer, boolean ? Document(word == "true") : Document(word));
  });
}

void ScenarioForm::add_line(QFormLayout* layout, const std::string& name, const Document& schema,
                            const std::string& pointer) {
  auto* line = new QLineEdit;
  const QString fallback = default_text(schema);
  line->setPlaceholderText(fallback.isEmpty() ? "not set" : "default: " + fallback);
  line->setToolTip(tip_of(schema));
  line->setAccessibleName(text(pointer).mid(1));
  layout->addRow(label_of(name), line);
  fields_[pointer] = line;
  schemas_[pointer] = schema;
  connect(line, &QLineEdit::textEdited, this, [this, pointer](const QString& typed) {
    const std::string word = typed.trimmed().toStdString();
    if (word.empty()) return put(pointer, Document::value_t::discarded);
    const Document& s = schemas_[pointer];
    const bool text_only = is_type(s, "string") && !is_type(s, "integer") && !is_type(s, "number");
    Document value = text_only ? Document(word) : Document::parse(word, nullptr, false);
    put(pointer, value.is_discarded() ? Document(word) : value);
  });
}

void ScenarioForm::put(const std::string& pointer, const Document& value) {
  if (filling_) return;
  const Document::json_pointer at(pointer);
  try {
    if (!value.is_discarded()) {
      document_[at] = value;
    } else if (document_.contains(at)) {
      document_[at.parent_pointer()].erase(at.back());
    }
    show_error("", "");
  } catch (const Document::exception&) {
    return show_error(text(pointer), "Cannot be set: what stands above it is no JSON object");
  }
  Q_EMIT edited();
}

void ScenarioForm::set_document(Document document) {
  document_ = std::move(document);
  filling_ = true;
  for (const auto& [pointer, widget] : fields_) refresh_field(pointer);
  filling_ = false;
  show_error("", "");
}

void ScenarioForm::refresh_field(const std::string& pointer) {
  const Document::json_pointer at(pointer);
  QString shown;
  bool there = false;
  try {
    if ((there = document_.contains(at))) {
      const Document& value = document_.at(at);
      shown = text(value.is_string() ? value.get<std::string>() : value.dump());
    }
  } catch (const Document::exception&) {
    there = false;  // something above it is no object: the schema check will say so
  }
  if (auto* box = qobject_cast<QComboBox*>(fields_[pointer])) {
    if (there && document_.at(at).is_object()) shown = "(stands in the scenario itself)";
    int index = there ? box->findText(shown) : 0;
    if (index < 0) {
      box->addItem(shown);
      index = box->count() - 1;
    }
    box->setCurrentIndex(index);
  } else if (auto* line = qobject_cast<QLineEdit*>(fields_[pointer])) {
    line->setText(there ? shown : QString());
    line->setCursorPosition(0);
  }
}

QWidget* ScenarioForm::field(const QString& pointer) const {
  const auto found = fields_.find(pointer.toStdString());
  return found == fields_.end() ? nullptr : found->second;
}

QStringList ScenarioForm::pointers() const {
  QStringList out;
  for (const auto& [pointer, widget] : fields_) out << text(pointer);
  return out;
}

void ScenarioForm::show_error(const QString& pointer, const QString& message) {
  std::string at = pointer.toStdString();
  while (!at.empty() && fields_.count(at) == 0) {
    const std::size_t slash = at.rfind('/');
    at = slash == std::string::npos ? "" : at.substr(0, slash);
  }
  for (const auto& [name, widget] : fields_) {
    const bool wrong = !at.empty() && name == at;
    widget->setStyleSheet(wrong ? QString("border: 2px solid %1").arg(theme().worse.name()) : "");
    widget->setAccessibleDescription(wrong ? message : QString());
    if (wrong)
      widget->setToolTip(message);
    else
      widget->setToolTip(tip_of(schemas_[name]));
  }
}

}  // namespace gputwin::gui
