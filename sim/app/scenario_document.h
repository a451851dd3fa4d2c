// A scenario as JSON: overrides applied, model and cluster inlined, and for every value the place
// it came from.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "sim/app/json_text.h"
#include "sim/app/scenario_files.h"
#include "sim/core/error.h"

namespace gputwin {

class ScenarioDocument {
 public:
  /// Parses `text`, applies `sets`, inlines the named model and cluster, and checks all three
  /// against their schemas. Errors: InputError.
  ScenarioDocument(const std::string& text, std::string file, const std::vector<std::string>& sets,
                   DataDirs dirs);

  const Json& root() const { return root_; }
  const Json* find(const std::string& pointer) const { return find_node(root_, pointer); }
  bool has(const std::string& pointer) const { return find(pointer) != nullptr; }

  /// True if an override wrote `pointer` or something it lies in.
  bool overridden(const std::string& pointer) const;

  /// The error "value at `pointer` `problem`", placed where the user wrote the value: the scenario
  /// file, the file of the named model or cluster, or "--set".
  InputError error(const std::string& pointer, const std::string& problem,
                   const std::string& fix) const;

  /// Of several places that contradict each other the one to blame: the first that an override
  /// wrote, else the first.
  std::string blame(const std::vector<std::string>& pointers) const;

  /// The same, but a key left out (its default does not fit) comes before one that was written.
  std::string blame_default(const std::vector<std::string>& pointers) const;

 private:
  void inline_named(const std::string& key);
  void apply(const std::string& override_text);
  void check(const std::string& at);

  Json root_;
  std::string file_;
  DataDirs dirs_;
  std::string model_file_, cluster_file_;  // empty if written inline
  std::set<std::string> overrides_;        // pointers that overrides wrote
  std::set<std::string> created_;  // objects and array entries that came into being for them
};

}  // namespace gputwin
