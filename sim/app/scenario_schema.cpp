#include "sim/app/scenario_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>
#include <vector>

#include "sim/app/suggestion.h"
#include "sim/core/check.h"

namespace gputwin {

extern const char* const kScenarioSchemaText;
extern const char* const kModelSchemaText;
extern const char* const kGraphSchemaText;
extern const char* const kClusterSchemaText;

namespace {

struct CompiledSchema {
  Json json;
  valijson::Schema schema;

  explicit CompiledSchema(const char* text) : json(Json::parse(text)) {
    valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(json), schema);
  }
};

const CompiledSchema& compiled(SchemaKind kind) {
  static const CompiledSchema scenario(kScenarioSchemaText);
  static const CompiledSchema model(kModelSchemaText);
  static const CompiledSchema graph(kGraphSchemaText);
  static const CompiledSchema cluster(kClusterSchemaText);
  switch (kind) {
    case SchemaKind::Scenario: return scenario;
    case SchemaKind::Model: return model;
    case SchemaKind::Graph: return graph;
    case SchemaKind::Cluster: return cluster;
  }
  return scenario;
}

std::string number_text(double v) {
  return v == std::floor(v) && std::abs(v) < 1e15 ? fmt::format("{:.0f}", v)
                                                  : fmt::format("{:g}", v);
}

std::vector<std::string> property_names(const Json& schema) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : schema.at("properties").items()) names.push_back(name);
  return names;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  GPUTWIN_CHECK(false, "the schemas use six types only, not " + type);
  return false;
}

/// The types a subschema allows; one or several.
std::vector<std::string> types_of(const Json& schema) {
  const Json& type = schema.at("type");
  if (type.is_string()) return {type.get<std::string>()};
  return type.get<std::vector<std::string>>();
}

/// "at least 1 and at most 1024 GBps", as the schema says it.
std::string range_text(const Json& schema) {
  std::string text;
  if (schema.contains("minimum")) {
    text = "at least " + number_text(schema["minimum"].get<double>());
  } else if (schema.contains("exclusiveMinimum")) {
    text = "more than " + number_text(schema["exclusiveMinimum"].get<double>());
  }
  if (schema.contains("maximum")) {
    text +=
        (text.empty() ? "" : " and ") + ("at most " + number_text(schema["maximum"].get<double>()));
  }
  if (schema.contains("x-unit")) text += " " + schema["x-unit"].get<std::string>();
  return text;
}

/// What a legal value looks like, for a value of the wrong type or a missing one.
std::string expectation(const Json& schema) {
  const std::string type = types_of(schema).front();
  std::string text;
  if (type == "integer") text = "a whole number, " + range_text(schema);
  if (type == "number") text = "a number, " + range_text(schema);
  if (type == "boolean") text = "true or false";
  if (type == "object") text = "an object { ... }";
  if (type == "array") text = "an array [ ... ]";
  if (type == "string" && schema.contains("enum")) {
    text = "one of";
    const auto words = schema["enum"].get<std::vector<std::string>>();
    for (std::size_t i = 0; i < std::min<std::size_t>(words.size(), 6); ++i) {
      text += (i == 0 ? " \"" : ", \"") + words[i] + "\"";
    }
    if (words.size() > 6) text += fmt::format(" and {} more", words.size() - 6);
  } else if (type == "string") {
    text = "a text in quotes";
  }
  return text;
}

SchemaBreach wrong_type(const Json& schema, const Json& value, const std::string& pointer) {
  std::string fix = "write " + expectation(schema);
  if (value.is_string() && (has_type(Json(1), types_of(schema).front()))) {
    fix += "; numbers stand without quotes";
  }
  if (value.is_number_float() && types_of(schema).front() == "integer") {
    const double low = schema.at("minimum").get<double>();
    const double high = schema.at("maximum").get<double>();
    fix += "; nearest: " + number_text(std::clamp(std::round(value.get<double>()), low, high));
    return {pointer, short_text(&value), "is not a whole number in range", fix};
  }
  return {pointer, short_text(&value), "has the wrong type", fix};
}

std::optional<SchemaBreach> check_keys(const Json& schema, const Json& value,
                                       const std::string& pointer) {
  const std::vector<std::string> names = property_names(schema);
  for (const auto& [key, member] : value.items()) {
    if (schema["properties"].contains(key)) continue;
    const std::string at = child_pointer(pointer, key);
    const auto planned = schema.find("x-planned-keys");
    if (planned != schema.end() && planned->contains(key)) {
      return SchemaBreach{at, short_text(&member),
                          "is not supported yet: " + (*planned)[key].get<std::string>(),
                          "remove the key"};
    }
    const std::string near = nearest_word(key, names);
    return SchemaBreach{
        at, short_text(&member), "is an unknown key",
        (is_slip(key, near) ? "did you mean \"" + near + "\"? " : "") + word_advice(key, names)};
  }
  const auto required = schema.find("required");
  if (required == schema.end()) return std::nullopt;
  for (const Json& name : *required) {
    if (value.contains(name.get<std::string>())) continue;
    return SchemaBreach{child_pointer(pointer, name.get<std::string>()), "", "is missing",
                        "add " + expectation(schema["properties"][name.get<std::string>()])};
  }
  return std::nullopt;
}

std::optional<SchemaBreach> check_word(const Json& schema, const Json& value,
                                       const std::string& pointer) {
  const auto words = schema.find("enum");
  const std::string word = value.get<std::string>();
  if (words != schema.end()) {
    if (std::find(words->begin(), words->end(), value) != words->end()) return std::nullopt;
    const auto planned = schema.find("x-planned");
    if (planned != schema.end() && planned->contains(word)) {
      return SchemaBreach{pointer, short_text(&value), "is not supported yet",
                          "nearest legal choice: " + (*planned)[word].get<std::string>()};
    }
    return SchemaBreach{pointer, short_text(&value), "is not a known value",
                        word_advice(word, words->get<std::vector<std::string>>())};
  }
  const std::size_t low = schema.value("minLength", std::size_t{0});
  const std::size_t high = schema.value("maxLength", std::string::npos);
  if (word.size() >= low && word.size() <= high) return std::nullopt;
  return SchemaBreach{pointer, short_text(&value), word.empty() ? "is empty" : "is too long",
                      fmt::format("write {} to {} characters", low, high)};
}

std::optional<SchemaBreach> check_number(const Json& schema, const Json& value,
                                         const std::string& pointer) {
  const double v = value.get<double>();
  const auto bound = [&](const char* keyword, double otherwise) {
    return schema.contains(keyword) ? schema[keyword].get<double>() : otherwise;
  };
  const double low = bound("minimum", -HUGE_VAL), above = bound("exclusiveMinimum", -HUGE_VAL);
  const double high = bound("maximum", HUGE_VAL);
  if (v >= low && v > above && v <= high) return std::nullopt;
  if (schema.contains("x-planned") && v > high && v < 1e6) {
    return SchemaBreach{pointer, short_text(&value),
                        "is not supported yet: " + schema["x-planned"].get<std::string>(),
                        "nearest legal value: " + number_text(high)};
  }
  std::string fix = "write " + range_text(schema);
  if (!schema.contains("exclusiveMinimum") || v > high) {
    fix += "; nearest legal value: " + number_text(v > high ? high : low);
  }
  return SchemaBreach{pointer, short_text(&value), "is out of range", fix};
}

std::optional<SchemaBreach> check_items(const Json& schema, const Json& value,
                                        const std::string& pointer) {
  const std::size_t low = schema.value("minItems", std::size_t{0});
  const std::size_t high = schema.value("maxItems", std::string::npos);
  if (value.size() >= low && value.size() <= high) return std::nullopt;
  if (schema.contains("x-planned")) {
    std::string at = child_pointer(pointer, high);
    const Json& item = value[high];
    if (item.is_object() && item.size() == 1) at = child_pointer(at, item.begin().key());
    return SchemaBreach{at, short_text(&item),
                        "is not supported yet: " + schema["x-planned"].get<std::string>(),
                        "remove the entry, leaving []"};
  }
  return SchemaBreach{pointer, fmt::format("[{} entries]", value.size()),
                      value.size() < low ? "has too few entries" : "has too many entries",
                      value.size() < low ? fmt::format("write at least {}", low)
                                         : fmt::format("write at most {}", high)};
}

/// What the keywords of this one subschema (not of its children) say against `value`.
std::optional<SchemaBreach> check_here(const Json& schema, const Json& value,
                                       const std::string& pointer) {
  const std::vector<std::string> types = types_of(schema);
  if (std::none_of(types.begin(), types.end(), [&](const auto& t) { return has_type(value, t); })) {
    return wrong_type(schema, value, pointer);
  }
  if (value.is_object() && schema.contains("properties")) return check_keys(schema, value, pointer);
  if (value.is_string()) return check_word(schema, value, pointer);
  if (value.is_number()) return check_number(schema, value, pointer);
  if (value.is_array()) return check_items(schema, value, pointer);
  return std::nullopt;
}

/// Valijson's context ("<root>", "[layout]", "[tp]") as a JSON pointer.
std::string pointer_of(const std::vector<std::string>& context) {
  std::string pointer;
  for (std::size_t i = 1; i < context.size(); ++i) {
    pointer = child_pointer(pointer, context[i].substr(1, context[i].size() - 2));
  }
  return pointer;
}

const Json* descend(const Json& schema, const std::string& token) {
  if (schema.contains("properties")) {
    const auto found = schema["properties"].find(token);
    return found == schema["properties"].end() ? nullptr : &*found;
  }
  const bool index = !token.empty() && token.find_first_not_of("0123456789") == std::string::npos;
  return index && schema.contains("items") ? &schema["items"] : nullptr;
}

}  // namespace

const Json& schema_json(SchemaKind kind) { return compiled(kind).json; }

SchemaKind model_schema(const Json& model) {
  const auto kind = model.find("kind"), layers = model.find("layers");
  const bool graph = (kind != model.end() && *kind == "layer-graph") || model.contains("network") ||
                     (layers != model.end() && layers->is_array());
  return graph ? SchemaKind::Graph : SchemaKind::Model;
}

const Json* schema_at(SchemaKind kind, const std::string& pointer) {
  const Json* schema = &schema_json(kind);
  std::size_t begin = 1;
  while (schema != nullptr && begin <= pointer.size()) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    const std::string token = pointer.substr(begin, end - begin);
    const bool more = end < pointer.size();
    if (kind == SchemaKind::Scenario && begin == 1 && more && token == "model") {
      const std::string rest = pointer.substr(end);
      const Json* part = schema_at(SchemaKind::Model, rest);
      return part != nullptr ? part : schema_at(SchemaKind::Graph, rest);
    } else if (kind == SchemaKind::Scenario && begin == 1 && more && token == "cluster") {
      schema = &schema_json(SchemaKind::Cluster);
    } else {
      schema = descend(*schema, token);
    }
    begin = end + 1;
  }
  return schema;
}

std::optional<SchemaBreach> check_schema(SchemaKind kind, const Json& document) {
  const CompiledSchema& schema = compiled(kind);
  valijson::ValidationResults results;
  valijson::Validator validator;
  const valijson::adapters::NlohmannJsonAdapter target(document);
  if (validator.validate(schema.schema, target, &results)) return std::nullopt;
  std::string pointer, description;
  for (const auto& error : results) {
    pointer = pointer_of(error.context);
    description = error.description;
    const Json* part = schema_at(kind, pointer);
    const Json* value = find_node(document, pointer);
    if (part == nullptr || value == nullptr) continue;
    if (auto breach = check_here(*part, *value, pointer)) return breach;
  }
  return SchemaBreach{pointer, short_text(find_node(document, pointer)), description,
                      "see scenarios/README.md for what may stand here"};
}

}  // namespace gputwin
