#include "sim/app/scenario_document.h"

#include <utility>

#include "sim/app/scenario_schema.h"
#include "sim/app/set_path.h"
#include "sim/app/suggestion.h"

namespace gputwin {
namespace {

bool below(const std::string& pointer, const std::string& ancestor) {
  return pointer.starts_with(ancestor) &&
         (pointer.size() == ancestor.size() || pointer[ancestor.size()] == '/');
}

}  // namespace

ScenarioDocument::ScenarioDocument(const std::string& text, std::string file,
                                   const std::vector<std::string>& sets, DataDirs dirs)
    : root_(parse_json(text, file)), file_(std::move(file)), dirs_(std::move(dirs)) {
  if (!root_.is_object()) {
    throw InputError(file_, "", short_text(&root_), "is not a scenario", "write an object { ... }");
  }
  for (const std::string& set : sets) apply(set);
  check("");
  inline_named("model");
  inline_named("cluster");
  check("/model");
  check("/cluster");
}

void ScenarioDocument::apply(const std::string& override_text) {
  const Override o = parse_override(override_text);
  Json value = override_value(o);
  for (const char* key : {"model", "cluster"}) {
    const std::string at = std::string("/") + key;
    if (o.pointer == at) {
      (at == "/model" ? model_file_ : cluster_file_).clear();
      overrides_.erase(overrides_.lower_bound(at), overrides_.upper_bound(at + "/~"));
    } else if (below(o.pointer, at)) {
      inline_named(key);
    }
  }
  overrides_.insert(write_at(root_, o.pointer, std::move(value)));
}

void ScenarioDocument::inline_named(const std::string& key) {
  const auto member = root_.find(key);
  if (member == root_.end() || !member->is_string()) return;
  const std::string at = "/" + key, folder = key + "s", name = member->get<std::string>();
  const auto path = find_data_file(dirs_, folder, name);
  if (path.empty()) {
    const std::vector<std::string> names = data_names(dirs_, folder);
    throw error(at, "names no file in " + folder + "/",
                names.empty() ? "no " + folder + " found; name a data directory"
                              : word_advice(name, names));
  }
  const std::string file = path.string();
  Json document = parse_json(read_text_file(path), file);
  if (!document.is_object()) {
    throw InputError(file, "", short_text(&document), "is not a " + key, "write an object { ... }");
  }
  *member = std::move(document);
  (key == "model" ? model_file_ : cluster_file_) = file;
  overrides_.erase(at);  // what the file says is the file's to answer for
}

void ScenarioDocument::check(const std::string& at) {
  const SchemaKind kind = at.empty()       ? SchemaKind::Scenario
                          : at == "/model" ? SchemaKind::Model
                                           : SchemaKind::Cluster;
  const auto breach = check_schema(kind, *find(at));
  if (!breach) return;
  InputError e = error(at + breach->pointer, breach->problem, breach->fix);
  throw InputError(e.file, e.pointer, breach->value, breach->problem, breach->fix);
}

bool ScenarioDocument::overridden(const std::string& pointer) const {
  for (const std::string& o : overrides_) {
    if (below(pointer, o)) return true;
  }
  return false;
}

InputError ScenarioDocument::error(const std::string& pointer, const std::string& problem,
                                   const std::string& fix) const {
  std::string file = file_, place = pointer;
  if (overridden(pointer)) {
    file = "--set";
  } else if (!model_file_.empty() && below(pointer, "/model")) {
    file = model_file_;
    place = pointer.substr(std::string("/model").size());
  } else if (!cluster_file_.empty() && below(pointer, "/cluster")) {
    file = cluster_file_;
    place = pointer.substr(std::string("/cluster").size());
  }
  return InputError(file, place, short_text(find(pointer)), problem, fix);
}

std::string ScenarioDocument::blame(const std::vector<std::string>& pointers) const {
  for (const std::string& p : pointers) {
    if (overridden(p)) return p;
  }
  for (const std::string& p : pointers) {
    if (!has(p)) return p;
  }
  return pointers.front();
}

}  // namespace gputwin
