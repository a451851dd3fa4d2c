#include "validation/runs/published_run.h"

#include <fmt/format.h>

#include <fstream>
#include <set>
#include <sstream>

#include "sim/core/error.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

// Reads one row; errors name file and pointer.
class RowReader {
 public:
  RowReader(std::string file, std::string pointer, const Json& row)
      : file_(std::move(file)), pointer_(std::move(pointer)), row_(row) {
    if (!row.is_object()) fail("", row.dump(), "is no row", "write an object with id and config");
  }

  PublishedRun read(const Json& defaults) const {
    PublishedRun run;
    run.id = text(row_, "id", "");
    if (run.id.empty()) fail("/id", "", "is missing", "name the row");
    run.group = text(row_, "group", "");
    run.kind = text(row_, "kind", "");
    const auto config = row_.find("config");
    if (config == row_.end() || !config->is_object()) {
      fail("/config", "", "is missing", "state the inputs of the run there");
    }
    run.config = defaults;
    run.config.merge_patch(*config);  // null removes a default: not known
    run.target = target();
    run.scorable = flag("scorable", true);
    run.not_scorable_why = texts("not_scorable_why");
    return run;
  }

 private:
  [[noreturn]] void fail(const std::string& where, const std::string& value,
                         const std::string& problem, const std::string& fix) const {
    throw InputError(file_, pointer_ + where, value.substr(0, 80), problem, fix);
  }

  std::string text(const Json& object, const char* key, const std::string& otherwise) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return otherwise;
    if (!found->is_string()) fail(std::string("/") + key, found->dump(), "is no text", "quote it");
    return found->get<std::string>();
  }

  bool flag(const char* key, bool otherwise) const {
    const auto found = row_.find(key);
    if (found == row_.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) {
      fail(std::string("/") + key, found->dump(), "is neither true nor false", "write one of them");
    }
    return found->get<bool>();
  }

  std::vector<std::string> texts(const char* key) const {
    const auto found = row_.find(key);
    if (found == row_.end() || found->is_null()) return {};
    const std::string where = std::string("/") + key;
    if (!found->is_array()) fail(where, found->dump(), "is no list", "write texts in [ ]");
    std::vector<std::string> list;
    for (const Json& text : *found) {
      if (!text.is_string()) {
        fail(fmt::format("{}/{}", where, list.size()), text.dump(), "is no text", "quote it");
      }
      list.push_back(text.get<std::string>());
    }
    return list;
  }

  std::optional<double> positive(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return std::nullopt;
    if (!found->is_number() || !(found->get<double>() > 0)) {
      fail(std::string("/target/") + key, found->dump(), "is no positive number",
           "write null for what was not measured");
    }
    return found->get<double>();
  }

  RunTarget target() const {
    RunTarget t;
    const auto found = row_.find("target");
    if (found == row_.end() || found->is_null()) return t;
    if (!found->is_object()) fail("/target", found->dump(), "is no object", "write {} if empty");
    t.time_s = positive(*found, "time_s");
    t.of_iteration = text(*found, "time_scope", "iteration") == "iteration";
    t.memory_bytes = positive(*found, "memory_bytes");
    t.memory_kind = text(*found, "memory_kind", "");
    if (const auto trains = found->find("trains"); trains != found->end()) {
      if (!trains->is_boolean()) {
        fail("/target/trains", trains->dump(), "is neither true nor false", "write one of them");
      }
      t.trains = trains->get<bool>();
    }
    if (const auto rate = found->find("throughput"); rate != found->end() && rate->is_object()) {
      if (text(*rate, "unit", "") == "TFLOP/s/device") t.tflops = positive(*rate, "value");
    }
    return t;
  }

  std::string file_, pointer_;
  const Json& row_;
};

Json parse(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "name a file of runs");
  std::stringstream text;
  text << in.rdbuf();
  try {
    return Json::parse(text.str());
  } catch (const Json::parse_error& e) {
    throw InputError(path.string(), "", "", fmt::format("is no JSON: byte {}", e.byte),
                     "see validation/runs/README.md for the format");
  }
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::filesystem::path& path) {
  const Json document = parse(path);
  const bool wrapped = document.is_object() && document.contains("rows");
  const Json& rows = wrapped ? document["rows"] : document;
  if (!rows.is_array()) {
    throw InputError(path.string(), wrapped ? "/rows" : "", "", "is no array of rows",
                     "see validation/runs/README.md for the format");
  }
  const Json defaults = wrapped ? document.value("defaults", Json::object()) : Json::object();
  if (!defaults.is_object()) {
    throw InputError(path.string(), "/defaults", defaults.dump().substr(0, 80), "is no object",
                     "state there what rows leave out of config");
  }
  std::vector<PublishedRun> runs;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string pointer = fmt::format("{}/{}", wrapped ? "/rows" : "", i);
    runs.push_back(RowReader(path.string(), pointer, rows[i]).read(defaults));
    if (!seen.insert(runs.back().id).second) {
      throw InputError(path.string(), pointer + "/id", runs.back().id, "names an earlier row too",
                       "give every row its own id");
    }
  }
  return runs;
}

}  // namespace gputwin
