// Every leaf of every shipped scenario, its model and cluster inlined, is deleted, misspelt, given
// another type, negated and set to 1e30. The loader takes it, or blames that leaf and says a way
// out; nothing else happens.
#include <gtest/gtest.h>

#include "sim/app/json_text.h"
#include "sim/app/scenario.h"
#include "sim/core/error.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

using test::data_dirs;
using test::shipped;

void collect_leaves(const Json& node, const std::string& pointer,
                    std::vector<std::string>& leaves) {
  if (node.is_object() && !node.empty()) {
    for (const auto& [key, child] : node.items()) {
      collect_leaves(child, child_pointer(pointer, key), leaves);
    }
  } else if (node.is_array() && !node.empty()) {
    for (std::size_t i = 0; i < node.size(); ++i) {
      collect_leaves(node[i], child_pointer(pointer, i), leaves);
    }
  } else {
    leaves.push_back(pointer);
  }
}

struct Mutant {
  std::string what;
  std::string names;  // pointer an error must give; its parent will also do if `or_parent`
  bool or_parent = false;
  Json document;
};

Json other_type(const Json& leaf) {
  if (leaf.is_string()) return 17;
  return leaf.is_boolean() ? Json("yes") : Json("many");
}

std::vector<Mutant> mutants(const Json& original, const std::string& leaf) {
  std::vector<Mutant> list;
  const std::string parent = parent_pointer(leaf), key = leaf.substr(parent.size() + 1);
  const Json value = original.at(Json::json_pointer(leaf));
  const auto with = [&](const std::string& what, const Json& replacement) {
    Mutant m{what, leaf, false, original};
    m.document[Json::json_pointer(leaf)] = replacement;
    list.push_back(std::move(m));
  };
  Mutant deleted{"deleted", leaf, true, original};
  Json& owner = deleted.document[Json::json_pointer(parent)];
  if (owner.is_array()) {
    owner.erase(std::stoul(key));
  } else {
    owner.erase(key);
    Mutant misspelt{"misspelt key", parent + "/" + key + "x", false, deleted.document};
    misspelt.document[Json::json_pointer(parent)][key + "x"] = value;
    list.push_back(std::move(misspelt));
  }
  list.push_back(std::move(deleted));
  if (value.is_string()) with("misspelt value", value.get<std::string>() + "x");
  with("wrong type", other_type(value));
  with("an object", Json::object({{"a", 1}}));
  with("null", nullptr);
  with("1e30", 1e30);
  if (value.is_number_integer()) with("negated", -value.get<std::int64_t>() - 1);
  if (value.is_number_float()) with("negated", -value.get<double>());
  return list;
}

struct Count {
  int accepted = 0, refused = 0;
};

// Of two keys that need each other the one that is left is blamed, and the way out names the other.
bool names_in_fix(const Mutant& m, const InputError& e) {
  return e.fix.find(m.names.substr(parent_pointer(m.names).size() + 1)) != std::string::npos;
}

void try_mutant(const Mutant& m, Count& count) {
  try {
    parse_scenario(m.document.dump(), "mutant.json", {}, data_dirs());
    ++count.accepted;
  } catch (const InputError& e) {
    ++count.refused;
    const bool named =
        e.pointer == m.names || e.pointer.starts_with(m.names + "/") ||
        (m.or_parent && (e.pointer == parent_pointer(m.names) || names_in_fix(m, e)));
    EXPECT_TRUE(named) << m.names << " " << m.what << " is blamed on " << e.what();
    EXPECT_EQ(e.file, "mutant.json");
    EXPECT_FALSE(e.fix.empty()) << e.what();
    EXPECT_FALSE(e.problem.empty()) << e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << m.names << " " << m.what << " throws something else: " << e.what();
  }
}

TEST(ScenarioMutations, AreTakenOrBlamedOnTheLeaf) {
  Count count;
  for (const auto& file : shipped("runs")) {
    SCOPED_TRACE(file.filename().string());
    const Scenario s = load_scenario(file, {}, data_dirs());
    const Json document = Json::parse(s.resolved);
    std::vector<std::string> leaves;
    collect_leaves(document, "", leaves);
    for (const std::string& leaf : leaves) {
      for (const Mutant& m : mutants(document, leaf)) try_mutant(m, count);
    }
  }
  // Most of the mutations are wrong; those that are not, are names, sources and optional keys.
  EXPECT_GT(count.refused, 3 * count.accepted);
  EXPECT_GT(count.refused, 5000);
  RecordProperty("refused", count.refused);
  RecordProperty("accepted", count.accepted);
}

/// True if `text` loads; every other outcome than InputError with a way out fails the test.
bool loads(const std::string& text, const std::string& what) {
  try {
    parse_scenario(text, "mutant.json", {}, data_dirs());
    return true;
  } catch (const InputError& e) {
    EXPECT_FALSE(e.fix.empty()) << what << ": " << e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << " throws something else: " << e.what();
  }
  return false;
}

// Numbers that a person could mean, legal one by one but not together: any place may be blamed.
TEST(ScenarioMutations, OfNumbersNeverCrash) {
  int accepted = 0, refused = 0;
  for (const auto& file : shipped("runs")) {
    SCOPED_TRACE(file.filename().string());
    const Json document = Json::parse(load_scenario(file, {}, data_dirs()).resolved);
    std::vector<std::string> leaves;
    collect_leaves(document, "", leaves);
    for (const std::string& leaf : leaves) {
      const Json value = document.at(Json::json_pointer(leaf));
      if (!value.is_number()) continue;
      const double v = value.get<double>();
      for (const double other : {0.0, 1.0, 2.0, 3.0, v + 1, 2 * v, 7 * v, 65536.0, 1e6, 9e18}) {
        Json mutant = document;
        mutant[Json::json_pointer(leaf)] = static_cast<std::int64_t>(other);
        ++(loads(mutant.dump(), leaf + " = " + std::to_string(other)) ? accepted : refused);
      }
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}

// A file cut off anywhere is refused; with one byte lost it is refused or still a scenario.
TEST(ScenarioMutations, OfTheTextNeverCrash) {
  const std::string text = load_scenario(test::kFlagship, {}, data_dirs()).resolved;
  const std::string whole = text.substr(0, text.rfind('}'));
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    EXPECT_FALSE(loads(whole.substr(0, i), "cut at " + std::to_string(i)));
    std::string without = text;
    without.erase(i, 1);
    loads(without, "without byte " + std::to_string(i));
  }
}

}  // namespace
}  // namespace gputwin
