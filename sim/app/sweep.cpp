#include "sim/app/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "sim/app/data_directory.h"
#include "sim/app/json_text.h"
#include "sim/app/set_path.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// What one --vary or the list offers: settings that are made together, one entry per way.
using Choices = std::vector<std::vector<Setting>>;

// Splits at `separator` outside brackets and quotes; parts that are empty stay.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == separator && !quoted && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Checks path and type of one setting; errors name `file` and `place`.
Setting checked(const std::string& text, const std::string& file, const std::string& place) {
  try {
    const Override o = parse_override(text);
    override_value(o);
    return {text.substr(0, text.find('=')), o.text};
  } catch (const InputError& e) {
    throw InputError(file, place.empty() ? e.pointer : place + ": " + e.pointer, e.value, e.problem,
                     e.fix);
  }
}

// "path=v1,v2" as one setting per value.
std::vector<Setting> values_of(const std::string& text) {
  const std::size_t equal = text.find('=');
  if (equal == std::string::npos || equal == 0 || equal + 1 == text.size()) {
    throw InputError("--vary", "", text, "is not of the form path=v1,v2",
                     "write for example layout.micro_batch=1,2,4");
  }
  std::vector<Setting> settings;
  for (const std::string& value : split(text.substr(equal + 1), ',')) {
    settings.push_back(checked(text.substr(0, equal + 1) + value, "--vary", ""));
  }
  return settings;
}

Choices choices_of(const std::string& vary) {
  Choices axis;
  for (const std::string& part : split(vary, ';')) {
    const std::vector<Setting> settings = values_of(part);
    if (axis.empty()) axis.resize(settings.size());
    if (axis.size() != settings.size()) {
      throw InputError(
          "--vary", "", vary,
          fmt::format("varies together {} and {} values", axis.size(), settings.size()),
          "give paths joined by ; the same number of values");
    }
    for (std::size_t i = 0; i < settings.size(); ++i) axis[i].push_back(settings[i]);
  }
  for (std::size_t i = 0; i < axis.size(); ++i) {
    if (std::find(axis.begin(), axis.begin() + static_cast<std::ptrdiff_t>(i), axis[i]) !=
        axis.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InputError("--vary", "", vary, "holds " + axis[i].front().value + " twice",
                       "name each value once");
    }
  }
  return axis;
}

Choices points_of_list(const fs::path& file) {
  Choices points;
  std::string text = read_text_file(file);
  std::size_t number = 0;
  for (std::string& line : split(text, '\n')) {
    const std::string place = fmt::format("line {}", ++number);
    line = line.substr(0, line.find('#'));
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '\t' || c == '\r'; }, ' ');
    std::vector<Setting> point;
    for (const std::string& part : split(line, ' ')) {
      if (!part.empty()) point.push_back(checked(part, file.string(), place));
    }
    if (!point.empty()) points.push_back(std::move(point));
  }
  if (points.empty()) {
    throw InputError(file.string(), "", "", "holds no points",
                     "write one a line, for example layout.tp=4 layout.dp=8");
  }
  return points;
}

// No path twice in one point, except in the list, where later ones win as with --set.
void check_paths(const std::vector<Choices>& axes, std::size_t grid_begin) {
  std::set<std::string> seen;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    std::set<std::string> here;
    for (const auto& settings : axes[a]) {
      for (const Setting& s : settings) here.insert(s.path);
    }
    for (const std::string& path : here) {
      if (seen.insert(path).second && (a < grid_begin || axes[a].front().size() == here.size()))
        continue;
      throw InputError("--vary", "", path, "is varied twice", "name each path once");
    }
  }
}

std::vector<std::vector<Setting>> product(const std::vector<Choices>& axes) {
  std::size_t count = 1;
  for (const Choices& axis : axes) {
    count *= axis.size();
    if (count > kMaxSweepPoints) {
      throw InputError("--vary", "", "", fmt::format("makes more than {} points", kMaxSweepPoints),
                       "vary fewer values at once");
    }
  }
  std::vector<std::vector<Setting>> points(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t rest = count, at = i;
    for (const Choices& axis : axes) {
      rest /= axis.size();
      const auto& settings = axis[at / rest];
      points[i].insert(points[i].end(), settings.begin(), settings.end());
      at %= rest;
    }
  }
  return points;
}

// FNV-1a, 64 bits: tells files apart, no defence against forgery.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    value_ = (value_ ^ 0xffu) * 0x100000001b3ull;
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ull;
};

void add_files(const fs::path& folder, Hash& hash) {
  std::error_code missing;
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder, missing)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    hash.add(file.lexically_relative(folder).string());
    hash.add(read_text_file(file));
  }
}

}  // namespace

std::string value_at(const std::vector<Setting>& point, const std::string& path) {
  std::string value;
  for (const Setting& s : point) {
    if (s.path == path) value = s.value;
  }
  return value;
}

Sweep plan_sweep(const SweepRequest& request, const std::vector<fs::path>& data_dirs) {
  Sweep sweep;
  sweep.base = find_scenario(request.scenario, data_dirs);
  const Json base = parse_json(sweep.base.text, sweep.base.file);
  if (!base.is_object()) {
    throw InputError(sweep.base.file, "", short_text(&base), "is not a scenario",
                     "write an object { ... }");
  }
  const Json* name = find_node(base, "/name");
  sweep.name = name != nullptr && name->is_string() ? name->get<std::string>() : "unnamed";
  for (const std::string& set : request.sets) checked(set, "--set", "");
  sweep.sets = request.sets;
  sweep.plugins = request.plugins;
  sweep.extrapolate = request.extrapolate;
  std::vector<Choices> axes;
  if (!request.list.empty()) axes.push_back(points_of_list(request.list));
  const std::size_t grid_begin = axes.size();
  for (const std::string& vary : request.vary) axes.push_back(choices_of(vary));
  if (axes.empty()) {
    throw InputError("sweep", "", "", "has nothing to vary",
                     "add --vary path=v1,v2 or --list FILE");
  }
  check_paths(axes, grid_begin);
  sweep.points = product(axes);
  for (const Choices& axis : axes) {
    for (const auto& settings : axis) {
      for (const Setting& s : settings) {
        if (std::find(sweep.columns.begin(), sweep.columns.end(), s.path) == sweep.columns.end())
          sweep.columns.push_back(s.path);
      }
    }
  }
  return sweep;
}

OrderedJson sweep_request(const Sweep& sweep, std::size_t i) {
  std::vector<std::string> sets = sweep.sets;
  for (const Setting& s : sweep.points[i]) sets.push_back(s.path + "=" + s.value);
  OrderedJson request{{"name", sweep.base.file},
                      {"scenario", OrderedJson::parse(sweep.base.text)},
                      {"sets", sets},
                      {"exact", !sweep.extrapolate}};
  for (const fs::path& dir : sweep.base.dirs) request["dirs"].push_back(dir.string());
  if (!sweep.plugins.empty()) request["plugins"] = sweep.plugins;
  return request;
}

OrderedJson sweep_identity(const Sweep& sweep, const std::string& version) {
  Hash scenario, points, data, plugins;
  scenario.add(sweep.base.text);
  scenario.add(sweep.extrapolate ? "extrapolate" : "exact");
  for (const std::string& set : sweep.sets) scenario.add(set);
  for (const auto& point : sweep.points) {
    for (const Setting& s : point) points.add(s.path + "=" + s.value);
    points.add("");
  }
  add_files(data_directory() / "hwmodels", data);
  for (const fs::path& dir : sweep.base.dirs) {
    add_files(dir / "models", data);
    add_files(dir / "clusters", data);
  }
  for (const std::string& plugin : sweep.plugins) {
    std::ifstream in(plugin, std::ios::binary);
    plugins.add(std::string(std::istreambuf_iterator<char>(in), {}));
  }
  return {{"program", version},
          {"scenario", scenario.text()},
          {"points", fmt::format("{} ({})", sweep.points.size(), points.text())},
          {"models, clusters and devices", data.text()},
          {"plugins", plugins.text()}};
}

OrderedJson sweep_row(const OrderedJson& answer) {
  const std::string status = answer.value("status", "error");
  if (status != "ok") {
    std::string reason = answer.value("reason", "");
    if (reason.starts_with("--set: ")) reason.erase(0, std::string("--set: ").size());
    return {{"status", status == "input" ? "invalid" : status}, {"reason", reason}};
  }
  OrderedJson row{{"status", "ok"}};
  for (const auto& [key, value] : answer.at("result").items()) {
    if (key == "schema" || key == "scenario" || key == "engine") continue;
    row[key] = value;
    if (key == "memory") row[key].erase("by_role");
  }
  return row;
}

}  // namespace gputwin
