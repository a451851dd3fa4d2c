// Slurm's topology.conf: lines SwitchName=… with Nodes=… (leaf) or Switches=….
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "hwmodels/import/import.h"
#include "hwmodels/import/lines.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNames = 1'000'000;

struct Switch {
  std::string name;
  std::size_t line = 0;
  std::vector<std::string> nodes, below;
};

struct Names {
  const std::string& file;
  std::size_t line;

  [[noreturn]] void fail(const std::string& value, const std::string& problem,
                         const std::string& fix) const {
    fail_at(file, line, value, problem, fix);
  }

  // Adds every name of one item, "node[01-16,20]"; several brackets give all combinations.
  void expand(const std::string& item, std::vector<std::string>& out) const {
    const std::size_t open = item.find('[');
    if (open == std::string::npos) {
      if (item.empty() || item.find(']') != std::string::npos) {
        fail(item, "is no name", "as node[01-16,20]");
      }
      if (out.size() >= kMostNames)
        fail(item, "makes more than a million names", "is a range wrong?");
      out.push_back(item);
      return;
    }
    const std::size_t close = item.find(']', open);
    if (close == std::string::npos)
      fail(item, "opens a range that does not end", "as node[01-16,20]");
    const std::string before = item.substr(0, open), behind = item.substr(close + 1);
    const std::string ranges = item.substr(open + 1, close - open - 1);
    for (std::size_t at = 0; at <= ranges.size();) {
      const std::size_t end = std::min(ranges.find(',', at), ranges.size());
      const std::string range = ranges.substr(at, end - at);
      const std::size_t dash = std::min(range.find('-'), range.size());
      const std::string from = range.substr(0, dash);
      const std::string to = dash < range.size() ? range.substr(dash + 1) : from;
      const auto first = whole_number(from), last = whole_number(to);
      if (!first || !last || *first < 0 || *last < *first ||
          *last - *first >= static_cast<std::int64_t>(kMostNames)) {
        fail(item, "has a range that is none", "as node[01-16,20]");
      }
      for (std::int64_t i = *first; i <= *last; ++i) {
        std::string digits = std::to_string(i);
        if (digits.size() < from.size()) digits.insert(0, from.size() - digits.size(), '0');
        expand(before + digits + behind, out);
      }
      at = end + 1;
    }
  }

  // "a[1-2],b": commas outside of brackets separate.
  std::vector<std::string> list(const std::string& text) const {
    std::vector<std::string> out;
    std::string item;
    int depth = 0;
    for (const char c : text) {
      depth += c == '[' ? 1 : c == ']' ? -1 : 0;
      if (c == ',' && depth == 0) {
        expand(item, out);
        item.clear();
      } else {
        item += c;
      }
    }
    expand(item, out);
    return out;
  }
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// One statement: key=value words.
void read_statement(const Names& at, const std::string& text, std::vector<Switch>& switches,
                    std::vector<std::string>& notes) {
  Switch here;
  std::vector<std::string> names;
  here.line = at.line;
  for (const std::string& word : words_of(text)) {
    const std::size_t equal = word.find('=');
    const std::string key = lower(word.substr(0, equal));
    if (equal == std::string::npos || equal + 1 == word.size()) {
      at.fail(word, "is no statement of topology.conf", "as SwitchName=leaf1 Nodes=node[01-16]");
    }
    const std::string value = word.substr(equal + 1);
    if (key == "switchname") {
      names = at.list(value);
    } else if (key == "nodes") {
      here.nodes = at.list(value);
    } else if (key == "switches") {
      here.below = at.list(value);
    } else if (key == "linkspeed") {
      notes.push_back("not represented: LinkSpeed of line " + std::to_string(at.line) +
                      ", a number without a unit");
    } else if (key == "blockname" || key == "blocksizes") {
      at.fail(word, "belongs to topology/block, which is no tree of switches",
              "give a topology.conf of topology/tree");
    } else {
      at.fail(word, "is an unknown key", "SwitchName, Nodes, Switches or LinkSpeed");
    }
  }
  if (names.size() != 1) at.fail("", "names no single switch", "begin with SwitchName=");
  if (here.nodes.empty() == here.below.empty()) {
    at.fail(names[0], "needs either Nodes or Switches", "add one of them");
  }
  here.name = names[0];
  switches.push_back(std::move(here));
}

std::vector<Switch> read_switches(const std::string& file, const std::string& text,
                                  std::vector<std::string>& notes) {
  const std::vector<std::string> lines = text_lines(file, text);
  std::vector<Switch> switches;
  std::string statement;
  std::size_t first = 1;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = lines[i].substr(0, lines[i].find('#'));
    if (statement.empty()) first = i + 1;
    const std::size_t last = line.find_last_not_of(" \t");
    if (last != std::string::npos && line[last] == '\\') {
      statement += line.substr(0, last) + " ";
      if (i + 1 < lines.size()) continue;
      fail_at(file, i + 1, "", "continues on a line that is missing", "is the file cut off?");
    }
    statement += line;
    if (!words_of(statement).empty()) read_statement({file, first}, statement, switches, notes);
    statement.clear();
  }
  if (switches.empty()) {
    throw InputError(file, "line 1", "", "defines no switch",
                     "as SwitchName=leaf1 Nodes=node[01-16]");
  }
  return switches;
}

// Spines with the same switches below them are one, as Slurm's manual writes fat trees.
void merge_parallel(std::vector<Switch>& switches, std::vector<std::string>& notes) {
  std::map<std::vector<std::string>, std::string> seen;
  std::map<std::string, std::string> merged;
  std::vector<Switch> kept;
  for (Switch& s : switches) {
    std::vector<std::string> key = s.below;
    std::sort(key.begin(), key.end());
    const auto [first, is_new] = seen.emplace(key, s.name);
    if (!s.below.empty() && !is_new && first->second != s.name) {
      merged[s.name] = first->second;
      notes.push_back("switches " + first->second + " and " + s.name +
                      " have the same switches below them: parallel, one level");
    } else {
      kept.push_back(std::move(s));
    }
  }
  for (Switch& s : kept) {
    for (std::string& name : s.below) {
      if (const auto to = merged.find(name); to != merged.end()) name = to->second;
    }
    std::sort(s.below.begin(), s.below.end());
    s.below.erase(std::unique(s.below.begin(), s.below.end()), s.below.end());
  }
  switches = std::move(kept);
}

// Refuses switches and nodes that stand twice; the switch of each name.
std::map<std::string, std::size_t> indexed(const std::string& file,
                                           const std::vector<Switch>& switches,
                                           std::map<std::string, std::string>& node_of) {
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < switches.size(); ++i) {
    const Switch& s = switches[i];
    const auto [other, is_new] = index.emplace(s.name, i);
    if (!is_new) {
      fail_at(file, s.line, s.name, "is defined twice",
              "first on line " + std::to_string(switches[other->second].line));
    }
    for (const std::string& node : s.nodes) {
      const auto [leaf, fresh] = node_of.emplace(node, s.name);
      if (!fresh)
        fail_at(file, s.line, node, "hangs below " + leaf->second + " already",
                "name each node once");
    }
  }
  return index;
}

struct Tree {
  std::vector<std::vector<std::int32_t>> sizes;  // by height: nodes below each switch
  std::int32_t nodes = 0;
};

Tree tree_of(const std::string& file, const std::vector<Switch>& switches,
             std::vector<std::string>& notes) {
  std::map<std::string, std::string> node_of;
  const std::map<std::string, std::size_t> index = indexed(file, switches, node_of);
  std::map<std::string, std::string> parent;
  for (const Switch& s : switches) {
    for (const std::string& name : s.below) {
      if (index.count(name) == 0) {
        fail_at(file, s.line, name, "is a switch that no line defines", "add SwitchName=" + name);
      }
      const auto [above, fresh] = parent.emplace(name, s.name);
      if (!fresh)
        fail_at(file, s.line, name, "hangs below " + above->second + " already",
                "name each switch once");
    }
  }
  Tree tree;
  tree.nodes = static_cast<std::int32_t>(node_of.size());
  std::size_t reached = 0, roots = 0;
  // Height and nodes of a switch. Every switch has one parent, so a walk from the roots meets no
  // loop; what it does not reach is one.
  const std::function<std::pair<std::size_t, std::int32_t>(std::size_t, std::size_t)> walk =
      [&](std::size_t at, std::size_t depth) {
        if (depth > 16)
          fail_at(file, switches[at].line, switches[at].name, "is deeper than 16 levels",
                  "is a name wrong?");
        ++reached;
        std::size_t height = 0;
        auto nodes = static_cast<std::int32_t>(switches[at].nodes.size());
        for (const std::string& name : switches[at].below) {
          const auto [h, n] = walk(index.at(name), depth + 1);
          height = std::max(height, h + 1);
          nodes += n;
        }
        if (tree.sizes.size() <= height) tree.sizes.resize(height + 1);
        tree.sizes[height].push_back(nodes);
        return std::pair{height, nodes};
      };
  for (std::size_t i = 0; i < switches.size(); ++i) {
    if (parent.count(switches[i].name) > 0) continue;
    ++roots;
    walk(i, 0);
  }
  if (reached < switches.size()) {
    for (const Switch& s : switches) {
      std::string name = s.name;
      for (std::size_t i = 0; i <= switches.size() && parent.count(name) > 0; ++i)
        name = parent[name];
      if (parent.count(name) > 0)
        fail_at(file, s.line, s.name, "hangs below itself", "break the loop");
    }
  }
  if (roots > 1) {
    notes.push_back("assumed: one more level of switches joins the " + std::to_string(roots) +
                    " trees of the file");
    tree.sizes.push_back({tree.nodes});
  }
  return tree;
}

Json levels_of(const Tree& tree, std::vector<std::string>& notes) {
  Json levels = Json::array();
  std::int32_t below = 1;
  for (std::size_t l = 0; l < tree.sizes.size(); ++l) {
    const auto [least, most] = std::minmax_element(tree.sizes[l].begin(), tree.sizes[l].end());
    const bool last = l + 1 == tree.sizes.size();
    const std::int32_t wanted = last ? std::max(tree.nodes, *most) : *most;
    std::int32_t group = (wanted + below - 1) / below * below;
    if (l > 0 && group == below) {
      if (!last) continue;  // a switch over one switch joins nothing
      break;
    }
    if (*least != *most || group != wanted) {
      notes.push_back("not represented: switches of level " + std::to_string(l + 1) + " hold " +
                      std::to_string(*least) + " to " + std::to_string(*most) +
                      " nodes; taken as " + std::to_string(group));
    }
    levels.push_back({{"nodes_per_group", group}});
    below = group;
  }
  return levels;
}

}  // namespace

Imported cluster_of_slurm(const std::string& file, const std::string& text,
                          const std::string& node_cluster, const std::string& name) {
  Imported out;
  std::vector<Switch> switches = read_switches(file, text, out.notes);
  merge_parallel(switches, out.notes);
  const Tree tree = tree_of(file, switches, out.notes);
  Json cluster = Json::parse(node_cluster);
  const std::string nodes_from = cluster.value("name", "a cluster file");
  cluster["name"] = name;
  cluster["source"] = "switches: Slurm topology.conf; nodes and rates: " + nodes_from;
  cluster["groups"] =
      Json::array({{{"type", cluster.at("groups").at(0).at("type")}, {"count", tree.nodes}}});
  Json& fabric = cluster["fabric"];
  if (tree.nodes > 1) fabric["levels"] = levels_of(tree, out.notes);
  if (fabric.value("rail_optimized", false)) {
    fabric["rail_optimized"] = false;
    out.notes.emplace_back(
        "assumed: leaf switches take all adapters of a node (topology.conf does not tell of "
        "rails)");
  }
  out.notes.push_back("assumed: nodes as in " + nodes_from + "; state others with --nodes-of");
  out.notes.emplace_back(
      "assumed: no oversubscription; topology.conf does not state how many links go up");
  out.text = cluster.dump(2) + "\n";
  return out;
}

}  // namespace gputwin
