// Reads case files and mappings.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/app/json_text.h"
#include "sim/core/error.h"
#include "validation/cases/cases.h"

namespace gputwin::cases {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void bad(const std::string& file, const std::string& pointer, const OrderedJson& value,
                      const std::string& problem, const std::string& fix) {
  throw InputError(file, pointer, value.is_null() ? "" : value.dump().substr(0, 60), problem, fix);
}

// Strict reading (duplicate keys, size), then in the order of the file.
OrderedJson document(const fs::path& path) {
  const std::string text = read_text_file(path);
  parse_json(text, path.string());
  return OrderedJson::parse(text);
}

const OrderedJson& member(const OrderedJson& object, const char* key) {
  static const OrderedJson none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

std::string text_of(const OrderedJson& object, const char* key, const std::string& file,
                    const std::string& pointer, bool needed) {
  const OrderedJson& value = member(object, key);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null() && !needed) return "";
  bad(file, pointer + "/" + key, value, value.is_null() ? "is missing" : "is no text",
      "write a text");
}

Check check_of(const OrderedJson& node, const std::string& file, const std::string& pointer) {
  Check check;
  check.metric = text_of(node, "metric", file, pointer, true);
  check.op = text_of(node, "op", file, pointer, true);
  static const std::set<std::string> kOps{
      "approx", "eq", "ge", "le", "gt", "lt", "order", "contains", "error_or_warning", "observed"};
  if (!kOps.contains(check.op)) {
    bad(file, pointer + "/op", check.op, "is no comparison",
        fmt::format("write one of {}", fmt::join(kOps, ", ")));
  }
  check.value = member(node, "value");
  check.unit = text_of(node, "unit", file, pointer, false);
  const OrderedJson& tolerance = member(node, "tol_rel");
  if (!tolerance.is_null()) {
    if (!tolerance.is_number() || tolerance.get<double>() < 0) {
      bad(file, pointer + "/tol_rel", tolerance, "is no share", "write a number of at least 0");
    }
    check.tolerance = tolerance.get<double>();
  }
  const bool numeric = check.op == "approx" || check.op.size() == 2;
  if (numeric && check.op != "eq" && !check.value.is_number()) {
    bad(file, pointer + "/value", check.value, "is no number", "a comparison needs one");
  }
  return check;
}

}  // namespace

std::vector<Case> read_cases(const fs::path& path) {
  const OrderedJson root = document(path);
  const OrderedJson& list = member(root, "cases");
  const std::string file = path.string();
  if (!list.is_array()) {
    bad(file, "/cases", list, "is no list", "a case file holds {\"cases\": [...]}");
  }
  std::vector<Case> cases;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string pointer = fmt::format("/cases/{}", i);
    Case c;
    c.id = text_of(list[i], "id", file, pointer, true);
    if (!ids.insert(c.id).second) bad(file, pointer + "/id", c.id, "stands twice", "rename one");
    c.category = text_of(list[i], "category", file, pointer, true);
    const OrderedJson& checks = member(member(list[i], "answer"), "checks");
    if (!checks.is_array()) {
      bad(file, pointer + "/answer/checks", checks, "is no list", "list the checks there");
    }
    for (std::size_t k = 0; k < checks.size(); ++k) {
      c.checks.push_back(check_of(checks[k], file, fmt::format("{}/answer/checks/{}", pointer, k)));
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

std::map<std::string, MappedCase> read_mapping(const fs::path& path) {
  std::vector<fs::path> files{path};
  if (fs::is_directory(path)) {
    files.clear();
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  }
  std::map<std::string, MappedCase> mapping;
  for (const fs::path& file : files) {
    const OrderedJson root = document(file);
    const OrderedJson& list = member(root, "cases");
    if (!list.is_object()) {
      bad(file.string(), "/cases", list, "is no object", "a mapping holds {\"cases\": {ID: ...}}");
    }
    for (const auto& [id, node] : list.items()) {
      const std::string pointer = child_pointer("/cases", id);
      if (!node.is_object()) {
        bad(file.string(), pointer, node, "is no object", "write runs and checks");
      }
      if (!mapping.emplace(id, MappedCase{file.string(), pointer, node}).second) {
        bad(file.string(), pointer, OrderedJson(), "is mapped twice", "keep one");
      }
    }
  }
  return mapping;
}

}  // namespace gputwin::cases
