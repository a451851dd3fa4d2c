#include "hwmodels/constants_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/error.h"

namespace gputwin {

namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 4> kEvidenceNames{"datasheet", "measured", "fitted",
                                                         "assumed"};

std::string_view range_text(Range range) {
  switch (range) {
    case Range::Positive: return "a number above 0";
    case Range::NotNegative: return "a number not below 0";
    case Range::Fraction: return "a number above 0 and at most 1";
    case Range::Any: return "a number";
  }
  return "";
}

bool in_range(double value, Range range) {
  if (!std::isfinite(value)) return false;
  switch (range) {
    case Range::Positive: return value > 0;
    case Range::NotNegative: return value >= 0;
    case Range::Fraction: return value > 0 && value <= 1;
    case Range::Any: return true;
  }
  return false;
}

constexpr int kMostBases = 4;  // deeper chains of "like" are hard to read, endless ones a mistake

bool is_constant(const Json& node) {
  return node.is_object() && (node.contains("value") || node.contains("values"));
}

// Marks every constant below `node` as carried over from `base`.
void carry_over(Json& node, const std::string& base) {
  if (is_constant(node)) {
    const Json& source = node.value("source", Json());
    if (source.is_string()) node["source"] = "as " + base + ": " + source.get<std::string>();
    node["kind"] = to_string(Evidence::Assumed);
  } else if (node.is_object()) {
    for (auto& [key, child] : node.items()) carry_over(child, base);
  }
}

// Lays `own` over `base`: groups are merged, constants and texts replaced, null removes.
void lay_over(Json& base, const Json& own) {
  for (const auto& [key, child] : own.items()) {
    if (child.is_null()) {
      base.erase(key);
    } else if (child.is_object() && !is_constant(child) && base.contains(key)) {
      lay_over(base[key], child);
    } else {
      base[key] = child;
    }
  }
}

// Collects the pointers of all constants and texts below `node`.
void leaves(const Json& node, const std::string& pointer, std::vector<std::string>& out) {
  if (!node.is_object() || is_constant(node)) {
    out.push_back(pointer);
    return;
  }
  for (const auto& [key, child] : node.items()) leaves(child, pointer + "/" + key, out);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view to_string(Evidence kind) { return kEvidenceNames[static_cast<std::size_t>(kind)]; }

struct ConstantsFile::Document {
  Json root;
  std::set<std::string> asked;
};

ConstantsFile::ConstantsFile(const std::filesystem::path& path) : ConstantsFile(path, 0) {}

ConstantsFile::ConstantsFile(const std::filesystem::path& path, int bases)
    : file_(path.string()), document_(std::make_unique<Document>()) {
  std::ifstream in(path);
  if (!in) fail("", "cannot be read", "name an existing file");
  Json& root = document_->root;
  try {
    root = Json::parse(in);
  } catch (const Json::parse_error& error) {
    fail("", "is not JSON (byte " + std::to_string(error.byte) + ")", "correct the syntax there");
  }
  if (!root.is_object()) fail("", "is not an object", "start with {");
  if (!root.contains("like")) return;
  if (!root["like"].is_string()) fail("/like", "is not a text", "name a file of this folder");
  if (bases == kMostBases) fail("/like", "goes on too long", "end the chain of bases");
  const std::string name = root["like"].get<std::string>();
  const ConstantsFile base(path.parent_path() / (name + ".json"), bases + 1);
  Json merged = base.document_->root;
  carry_over(merged, name);
  root.erase("like");
  lay_over(merged, root);
  root = std::move(merged);
}

ConstantsFile::~ConstantsFile() = default;
ConstantsFile::ConstantsFile(ConstantsFile&&) noexcept = default;
ConstantsFile& ConstantsFile::operator=(ConstantsFile&&) noexcept = default;

void ConstantsFile::fail(const std::string& pointer, const std::string& problem,
                         const std::string& fix) const {
  std::string value;
  const Json::json_pointer where(pointer);
  if (!pointer.empty() && document_->root.contains(where)) value = document_->root.at(where).dump();
  throw InputError(file_, pointer, value, problem, fix);
}

bool ConstantsFile::has(const std::string& pointer) const {
  return document_->root.contains(Json::json_pointer(pointer));
}

std::vector<std::string> ConstantsFile::keys(const std::string& pointer) const {
  std::vector<std::string> names;
  if (!has(pointer)) return names;
  const Json& node = document_->root.at(Json::json_pointer(pointer));
  if (!node.is_object()) fail(pointer, "is not a group", "write {\"name\": ...}");
  for (const auto& [key, child] : node.items()) names.push_back(key);
  return names;
}

Constant ConstantsFile::constant(const std::string& pointer, const std::string& value_key) {
  const std::string shape = value_key == "value"
                                ? R"({"value": 1.0, "source": "...", "kind": "assumed"})"
                                : R"({"values": [1.0], "source": "...", "kind": "assumed"})";
  if (!has(pointer)) fail(pointer, "is missing", "add it as " + shape);
  const Json& node = document_->root.at(Json::json_pointer(pointer));
  if (!node.is_object()) fail(pointer, "is not a constant with an origin", "write " + shape);
  for (const auto& [key, child] : node.items()) {
    if (key != value_key && key != "source" && key != "kind") {
      fail(pointer + "/" + key, "is an unknown key",
           "a constant has " + value_key + ", source and kind");
    }
  }
  for (const std::string& key : {value_key, std::string("source"), std::string("kind")}) {
    if (!node.contains(key)) fail(pointer + "/" + key, "is missing", "write " + shape);
  }
  if (!node.at("source").is_string() || node.at("source").get<std::string>().empty()) {
    fail(pointer + "/source", "is not a text", "say where the number comes from");
  }
  const Json& kind = node.at("kind");
  const std::string name = kind.is_string() ? kind.get<std::string>() : "";
  const auto* found = std::find(kEvidenceNames.begin(), kEvidenceNames.end(), name);
  if (found == kEvidenceNames.end()) {
    fail(pointer + "/kind", "is unknown", "datasheet, measured, fitted or assumed");
  }
  document_->asked.insert(pointer);
  return {pointer, 0.0, node.at("source").get<std::string>(),
          static_cast<Evidence>(found - kEvidenceNames.begin())};
}

double ConstantsFile::checked(const std::string& pointer, Range range) const {
  const Json& value = document_->root.at(Json::json_pointer(pointer));
  if (!value.is_number() || !in_range(value.get<double>(), range)) {
    fail(pointer, "is not allowed here", std::string(range_text(range)) + " is needed");
  }
  return value.get<double>();
}

double ConstantsFile::number(const std::string& pointer, Range range) {
  Constant found = constant(pointer, "value");
  found.value = checked(pointer + "/value", range);
  constants_.push_back(std::move(found));
  return constants_.back().value;
}

std::vector<double> ConstantsFile::numbers(const std::string& pointer, Range range) {
  const Constant found = constant(pointer, "values");
  const Json& values = document_->root.at(Json::json_pointer(pointer + "/values"));
  if (!values.is_array()) fail(pointer + "/values", "is not a list", "write [1.0, 2.0]");
  std::vector<double> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string at = pointer + "/values/" + std::to_string(i);
    out.push_back(checked(at, range));
    constants_.push_back({at, out.back(), found.source, found.kind});
  }
  return out;
}

double ConstantsFile::number_or(const std::string& pointer, double absent, Range range) {
  return has(pointer) ? number(pointer, range) : absent;
}

std::string ConstantsFile::text(const std::string& pointer) {
  if (!has(pointer)) fail(pointer, "is missing", "add a text");
  const Json& node = document_->root.at(Json::json_pointer(pointer));
  if (!node.is_string()) fail(pointer, "is not a text", "put it in quotes");
  document_->asked.insert(pointer);
  return node.get<std::string>();
}

void ConstantsFile::finish() const {
  std::vector<std::string> found;
  leaves(document_->root, "", found);
  const std::vector<std::string> asked(document_->asked.begin(), document_->asked.end());
  for (const std::string& pointer : found) {
    if (!document_->asked.contains(pointer)) {
      fail(pointer, "is an unknown key", "nearest known key: " + nearest_name(pointer, asked));
    }
  }
}

std::vector<std::string> list_json_names(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  if (error) {
    throw InputError(directory.string(), "", "", "cannot be read",
                     "name the folder of hardware data");
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names) {
  std::string best;
  std::size_t least = 0;
  for (const std::string& name : names) {
    // A name that goes on after what was written is nearer than any other spelling.
    const std::size_t distance = name.starts_with(wanted) ? 0 : edit_distance(wanted, name);
    if (best.empty() || distance < least) {
      best = name;
      least = distance;
    }
  }
  return best;
}

}  // namespace gputwin
