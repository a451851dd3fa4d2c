#include "sim/app/set_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/app/scenario_schema.h"
#include "sim/app/suggestion.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

constexpr const char* kFile = "--set";

enum class Dimension { Bandwidth, Time, Memory };

struct Unit {
  std::string_view name;
  Dimension dimension;
  double scale;  // in bit/s, ns or bytes: whole, so that conversions stay exact
};

constexpr double kKi = 1024.0, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;
constexpr std::array kUnits{
    Unit{"bps", Dimension::Bandwidth, 1},     Unit{"Mbps", Dimension::Bandwidth, 1e6},
    Unit{"Gbps", Dimension::Bandwidth, 1e9},  Unit{"Tbps", Dimension::Bandwidth, 1e12},
    Unit{"Mb/s", Dimension::Bandwidth, 1e6},  Unit{"Gb/s", Dimension::Bandwidth, 1e9},
    Unit{"Tb/s", Dimension::Bandwidth, 1e12}, Unit{"MBps", Dimension::Bandwidth, 8e6},
    Unit{"GBps", Dimension::Bandwidth, 8e9},  Unit{"TBps", Dimension::Bandwidth, 8e12},
    Unit{"MB/s", Dimension::Bandwidth, 8e6},  Unit{"GB/s", Dimension::Bandwidth, 8e9},
    Unit{"TB/s", Dimension::Bandwidth, 8e12}, Unit{"ns", Dimension::Time, 1},
    Unit{"us", Dimension::Time, 1e3},         Unit{"ms", Dimension::Time, 1e6},
    Unit{"s", Dimension::Time, 1e9},          Unit{"B", Dimension::Memory, 1},
    Unit{"KiB", Dimension::Memory, kKi},      Unit{"MiB", Dimension::Memory, kMi},
    Unit{"GiB", Dimension::Memory, kGi},      Unit{"TiB", Dimension::Memory, kTi},
    Unit{"KB", Dimension::Memory, 1e3},       Unit{"MB", Dimension::Memory, 1e6},
    Unit{"GB", Dimension::Memory, 1e9},       Unit{"TB", Dimension::Memory, 1e12}};

const Unit* find_unit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

std::string units_like(const Unit& unit) {
  std::string list;
  for (const Unit& other : kUnits) {
    if (other.dimension != unit.dimension || other.name.find('/') != std::string_view::npos)
      continue;
    list += (list.empty() ? "" : ", ") + std::string(other.name);
  }
  return list;
}

bool allows(const Json& schema, const std::string& type) {
  const Json& types = schema.at("type");
  if (types.is_string()) return types == type;
  for (const Json& t : types) {
    if (t == type) return true;
  }
  return false;
}

// Every path of a scenario that a value can be written at, arrays by index 0.
void add_paths(const Json& schema, const std::string& path, std::vector<std::string>& paths) {
  const Json* parts = &schema;
  if (path == "model") parts = &schema_json(SchemaKind::Model);
  if (path == "cluster") parts = &schema_json(SchemaKind::Cluster);
  if (parts->contains("x-planned")) return;
  const std::string dot = path.empty() ? "" : path + ".";
  if (parts->contains("properties")) {
    for (const auto& [name, part] : (*parts)["properties"].items()) {
      add_paths(part, dot + name, paths);
    }
  } else if (parts->contains("items") && (*parts)["items"].contains("properties")) {
    add_paths((*parts)["items"], dot + "0", paths);
  } else {
    paths.push_back(path);
  }
}

std::vector<std::string> words_of(const std::string& path) {
  std::vector<std::string> words(1);
  for (const char c : path) {
    if (c == '.' || c == '/' || c == '_') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  std::erase_if(words, [](const std::string& w) { return w.size() < 2; });
  return words;
}

// Words of `path` that `other` has too, perhaps longer or shorter ("nic", "nics").
int shared_words(const std::string& path, const std::string& other) {
  int shared = 0;
  const std::vector<std::string> others = words_of(other);
  for (const std::string& w : words_of(path)) {
    shared += std::any_of(others.begin(), others.end(), [&](const std::string& o) {
      return w == o || (std::min(w.size(), o.size()) > 2 && (o.starts_with(w) || w.starts_with(o)));
    });
  }
  return shared;
}

// The path that shares most words with `pointer`, those of its last key counted twice; empty if it
// shares none of the last key's.
std::string nearest_path(const std::string& pointer) {
  const std::string last = pointer.substr(pointer.rfind('/') + 1);
  std::vector<std::string> paths;
  add_paths(schema_json(SchemaKind::Scenario), "", paths);
  std::string best;
  std::pair<int, std::ptrdiff_t> most{0, 0};
  for (const std::string& path : paths) {
    const int named = shared_words(last, path);
    const std::string key = path.substr(path.rfind('.') + 1);
    const std::pair rank{named + shared_words(pointer, path),
                         -static_cast<std::ptrdiff_t>(edit_distance(last.substr(0, 64), key))};
    if (named == 0 || rank <= most) continue;
    best = path;
    most = rank;
  }
  return best;
}

/// The longest part of `pointer` that the schema knows, and the advice for the next token.
InputError unknown_path(const Override& o) {
  std::string known = parent_pointer(o.pointer), tail = o.pointer.substr(known.size() + 1);
  while (schema_at(SchemaKind::Scenario, known) == nullptr) {
    tail = known.substr(parent_pointer(known).size() + 1);
    known = parent_pointer(known);
  }
  const Json* schema = schema_at(SchemaKind::Scenario, known);
  if (known == "/model") schema = &schema_json(SchemaKind::Model);
  if (known == "/cluster") schema = &schema_json(SchemaKind::Cluster);
  if (schema->contains("x-planned-keys") && (*schema)["x-planned-keys"].contains(tail)) {
    return {kFile, o.pointer, o.text,
            "is not supported yet: " + (*schema)["x-planned-keys"][tail].get<std::string>(),
            "leave this override out"};
  }
  for (std::string above = known; !above.empty(); above = parent_pointer(above)) {
    if (!schema_at(SchemaKind::Scenario, above)->contains("x-planned")) continue;
    return {kFile, o.pointer, o.text, "is not supported yet", "leave this override out"};
  }
  if (schema->contains("items")) {
    return {kFile, o.pointer, o.text, "needs an index after " + known, "for example 0"};
  }
  if (!schema->contains("properties")) {
    return {kFile, o.pointer, o.text, "leads into a value that has no parts",
            "end the path at " + known};
  }
  std::vector<std::string> names;
  for (const auto& [name, unused] : (*schema)["properties"].items()) names.push_back(name);
  const std::string near = nearest_path(o.pointer);
  return {kFile, o.pointer, o.text, "names an unknown key \"" + tail + "\"",
          (near.empty() ? "" : "nearest path: " + near + "; ") + word_advice(tail, names)};
}

Json json_value(const Override& o) {
  try {
    return parse_json(o.text, kFile);
  } catch (const InputError& e) {
    throw InputError(kFile, o.pointer, o.text, e.problem, "write a JSON array or object");
  }
}

Json number_value(const Override& o, const Json& schema) {
  const double v = number_with_unit(o.text, schema.value("x-unit", ""), o.pointer);
  const bool whole = v == std::floor(v) && std::abs(v) < 9e15;
  if (whole && allows(schema, "integer")) return static_cast<std::int64_t>(v);
  return v;
}

}  // namespace

Override parse_override(const std::string& text) {
  const std::size_t equal = text.find('=');
  if (equal == std::string::npos || equal == 0) {
    throw InputError(kFile, "", text, "is not of the form path=value",
                     "write for example layout.tp=4");
  }
  Override o;
  o.text = text.substr(equal + 1);
  std::size_t begin = 0;
  while (begin <= equal) {
    const std::size_t end = std::min(text.find('.', begin), equal);
    if (end == begin) {
      throw InputError(kFile, "", text, "has an empty step in its path",
                       "write for example layout.tp=4");
    }
    o.pointer = child_pointer(o.pointer, text.substr(begin, end - begin));
    begin = end + 1;
  }
  return o;
}

double number_with_unit(const std::string& text, const std::string& unit,
                        const std::string& pointer) {
  double number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [rest, failed] = std::from_chars(begin, end, number);
  std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  if (failed != std::errc{} || !std::isfinite(number)) {
    throw InputError(kFile, pointer, text, "is not a number",
                     "write a number" + (unit.empty() ? "" : " in " + unit));
  }
  if (suffix.empty()) return number;
  const Unit* wanted = find_unit(unit);
  if (wanted == nullptr) {
    throw InputError(kFile, pointer, text, "carries a unit where none belongs",
                     fmt::format("write {:g}", number));
  }
  const Unit* given = find_unit(suffix);
  if (given == nullptr || given->dimension != wanted->dimension) {
    throw InputError(
        kFile, pointer, text,
        given == nullptr ? "carries an unknown unit" : "carries a unit of another kind",
        "the key is in " + unit + "; legal units: " + units_like(*wanted));
  }
  if (given->scale >= wanted->scale) return number * (given->scale / wanted->scale);
  return number / (wanted->scale / given->scale);
}

Json override_value(const Override& o) {
  const Json* schema = schema_at(SchemaKind::Scenario, o.pointer);
  if (schema == nullptr) throw unknown_path(o);
  const bool structured = !o.text.empty() && (o.text.front() == '{' || o.text.front() == '[');
  if (structured && (allows(*schema, "object") || allows(*schema, "array"))) return json_value(o);
  if (allows(*schema, "string")) return o.text;
  if (allows(*schema, "boolean")) {
    if (o.text == "true") return true;
    if (o.text == "false") return false;
    throw InputError(kFile, o.pointer, o.text, "is neither true nor false", "write true or false");
  }
  if (allows(*schema, "integer") || allows(*schema, "number")) return number_value(o, *schema);
  throw InputError(kFile, o.pointer, o.text, "cannot stand for an object or array",
                   allows(*schema, "array") ? "write [ ... ], or name one entry by its index"
                                            : "write { ... }, or name one of its keys");
}

std::string write_at(Json& root, const std::string& pointer, Json value) {
  Json* node = &root;
  std::string created, here;
  std::size_t begin = 1;
  while (begin <= pointer.size()) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    const std::string token = pointer.substr(begin, end - begin);
    const bool index =
        token.size() < 9 && token.find_first_not_of("0123456789") == std::string::npos;
    here = pointer.substr(0, end);
    if (node->is_null()) *node = index ? Json::array() : Json::object();
    const bool fits = index ? node->is_array() : node->is_object();
    if (!fits) {
      throw InputError(
          kFile, here, "", "leads into a value of another type",
          "correct " + (parent_pointer(here).empty() ? "the file" : parent_pointer(here)));
    }
    if (index) {
      const std::size_t at = std::stoul(token);
      if (at > node->size()) {
        throw InputError(
            kFile, here, token, "is beyond the end of the array",
            fmt::format("use an index from 0 to {}; {} appends", node->size(), node->size()));
      }
      if (at == node->size()) {
        node->push_back(nullptr);
        if (created.empty()) created = here;
      }
      node = &(*node)[at];
    } else {
      if (!node->contains(token) && created.empty()) created = here;
      node = &(*node)[token];
    }
    begin = end + 1;
  }
  *node = std::move(value);
  return created.empty() ? pointer : created;
}

}  // namespace gputwin
