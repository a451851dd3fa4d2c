#include "sim/app/scenario_document.h"

#include <algorithm>
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

bool below_any(const std::string& pointer, const std::set<std::string>& ancestors) {
  return std::any_of(ancestors.begin(), ancestors.end(),
                     [&](const std::string& ancestor) { return below(pointer, ancestor); });
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
      std::erase_if(overrides_, [&](const std::string& earlier) { return below(earlier, at); });
      std::erase_if(created_, [&](const std::string& earlier) { return below(earlier, at); });
    } else if (below(o.pointer, at)) {
      inline_named(key);
    }
  }
  created_.insert(write_at(root_, o.pointer, std::move(value)));
  overrides_.insert(o.pointer);
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
  created_.erase(at);
}

void ScenarioDocument::check(const std::string& at) {
  const SchemaKind kind = at.empty()       ? SchemaKind::Scenario
                          : at == "/model" ? model_schema(*find(at))
                                           : SchemaKind::Cluster;
  const auto breach = check_schema(kind, *find(at));
  if (!breach) return;
  InputError e = error(at + breach->pointer, breach->problem, breach->fix);
  throw InputError(e.file, e.pointer, breach->value, breach->problem, breach->fix);
}

bool ScenarioDocument::overridden(const std::string& pointer) const {
  return below_any(pointer, overrides_);
}

InputError ScenarioDocument::error(const std::string& pointer, const std::string& problem,
                                   const std::string& fix) const {
  std::string file = file_, place = pointer;
  if (overridden(pointer) || (!has(pointer) && below_any(pointer, created_))) {
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
  return pointers.front();
}

std::string ScenarioDocument::blame_default(const std::vector<std::string>& pointers) const {
  const std::string blamed = blame(pointers);
  if (overridden(blamed)) return blamed;
  for (const std::string& p : pointers) {
    if (!has(p)) return p;
  }
  return blamed;
}

}  // namespace gputwin
