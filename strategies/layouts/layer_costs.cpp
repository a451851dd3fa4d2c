#include "strategies/layouts/layer_costs.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/biconnected_components.hpp>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <set>

namespace gputwin {
namespace {

using Members = std::vector<std::int32_t>;

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

std::vector<Members> consumers_of(const LayerCosts& layers) {
  std::vector<Members> consumers(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const std::int32_t from : layers[l].inputs) {
      consumers[at(from)].push_back(static_cast<std::int32_t>(l));
    }
  }
  return consumers;
}

// Walks antichains as PipeDream's optimizer does.
class Antichains {
 public:
  explicit Antichains(const LayerCosts& layers)
      : layers_(layers), consumers_(consumers_of(layers)) {
    const std::size_t n = layers.size();
    before_.assign(n, std::vector<char>(n, 0));
    for (std::size_t l = 0; l < n; ++l) {
      for (const std::int32_t from : layers[l].inputs) {
        before_[l][at(from)] = 1;
        for (std::size_t k = 0; k < n; ++k) before_[l][k] |= before_[at(from)][k];
      }
    }
  }

  // Augmented antichains by number, and the edges between them; false beyond `limit`.
  bool walk(std::size_t limit) {
    std::map<Members, std::int32_t> known;
    const auto number = [&](const Members& antichain) {
      const auto [found, added] =
          known.try_emplace(sorted(antichain), static_cast<std::int32_t>(frontiers_.size()));
      if (added) {
        frontiers_.push_back(augmented(antichain));
        next_.emplace_back();
      }
      return found->second;
    };
    const Members first{first_layer()};
    std::deque<Members> queue{first};
    number(first);
    std::set<Members> done;
    while (!queue.empty()) {
      const Members antichain = queue.front();
      queue.pop_front();
      if (!done.insert(sorted(antichain)).second) continue;
      const std::int32_t from = number(antichain);
      for (Members& following : followers(antichain, frontiers_[at(from)])) {
        const std::int32_t to = number(following);
        if (frontiers_.size() > limit) return false;
        next_[at(from)].push_back(to);
        queue.push_back(std::move(following));
      }
    }
    return true;
  }

  // Numbers of the states in topological order: depth first, each before those it leads to.
  Members order() const {
    Members finished;
    std::vector<char> marked(frontiers_.size(), 0);
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(frontiers_.size()); ++s) {
      visit(s, marked, finished);
    }
    std::reverse(finished.begin(), finished.end());
    return finished;
  }

  GraphState state(std::int32_t number) const {
    GraphState s;
    s.frontier = frontiers_[at(number)];
    std::vector<char> within(layers_.size(), 0);
    for (const std::int32_t f : s.frontier) {
      s.output += layers_[at(f)].output;
      const bool passed = std::any_of(s.frontier.begin(), s.frontier.end(),
                                      [&](std::int32_t other) { return precedes(f, other); });
      if (!passed) s.tip += layers_[at(f)].output;
      within[at(f)] = 1;
      for (std::size_t k = 0; k < layers_.size(); ++k) within[k] |= before_[at(f)][k];
    }
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      if (within[k] == 0) continue;
      s.time = s.time + layers_[k].forward + layers_[k].backward;
      s.weights = s.weights + layers_[k].weights;
    }
    return s;
  }
  const std::vector<Members>& next() const { return next_; }

 private:
  static Members sorted(Members m) {
    std::sort(m.begin(), m.end());
    return m;
  }
  std::int32_t first_layer() const {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (layers_[l].inputs.empty()) return static_cast<std::int32_t>(l);
    }
    return 0;
  }
  bool precedes(std::int32_t a, std::int32_t b) const { return before_[at(b)][at(a)] != 0; }

  // With the predecessors that something outside the antichain's past still reads.
  Members augmented(const Members& antichain) const {
    std::set<std::int32_t> extra;
    for (const std::int32_t a : antichain) {
      for (std::int32_t p = 0; p < static_cast<std::int32_t>(layers_.size()); ++p) {
        if (!precedes(p, a)) continue;
        for (const std::int32_t out : consumers_[at(p)]) {
          if (!precedes(out, a) && out != a) extra.insert(p);
        }
      }
    }
    Members all(extra.begin(), extra.end());
    for (const std::int32_t a : antichain) {
      if (!extra.contains(a)) all.push_back(a);
    }
    return all;
  }

  std::vector<Members> followers(const Members& antichain, const Members& frontier) const {
    std::vector<Members> list;
    for (const std::int32_t old : frontier) {
      for (const std::int32_t fresh : consumers_[at(old)]) {
        if (std::find(antichain.begin(), antichain.end(), fresh) != antichain.end()) continue;
        const bool passed = std::any_of(frontier.begin(), frontier.end(),
                                        [&](std::int32_t f) { return precedes(fresh, f); });
        if (!passed) list.push_back(exchanged(frontier, old, fresh));
      }
    }
    return list;
  }

  // `frontier` with `fresh` for `old`, without what comes before another of it.
  Members exchanged(Members frontier, std::int32_t old, std::int32_t fresh) const {
    std::replace(frontier.begin(), frontier.end(), old, fresh);
    Members kept;
    for (const std::int32_t f : frontier) {
      const bool past = std::any_of(frontier.begin(), frontier.end(),
                                    [&](std::int32_t other) { return precedes(f, other); });
      if (!past && std::find(kept.begin(), kept.end(), f) == kept.end()) kept.push_back(f);
    }
    return kept;
  }

  void visit(std::int32_t s, std::vector<char>& marked, Members& finished) const {
    if (marked[at(s)] != 0) return;
    marked[at(s)] = 1;
    for (const std::int32_t to : next_[at(s)]) visit(to, marked, finished);
    finished.push_back(s);
  }

  const LayerCosts& layers_;
  std::vector<Members> consumers_;
  std::vector<std::vector<char>> before_;  // [layer][predecessor]
  std::vector<Members> frontiers_, next_;
};

}  // namespace

std::vector<std::int32_t> chain_links(const LayerCosts& layers) {
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS>;
  const std::size_t n = layers.size();
  // Two further nodes join all first and all last layers.
  Graph graph(n + 2);
  const std::vector<Members> consumers = consumers_of(layers);
  for (std::size_t l = 0; l < n; ++l) {
    for (const std::int32_t from : layers[l].inputs) boost::add_edge(at(from), l, graph);
    if (layers[l].inputs.empty()) boost::add_edge(n, l, graph);
    if (consumers[l].empty()) boost::add_edge(l, n + 1, graph);
  }
  std::vector<std::size_t> points;
  boost::articulation_points(graph, std::back_inserter(points));
  const std::set<std::size_t> ends(points.begin(), points.end());
  std::vector<std::int32_t> links(n);
  std::int32_t link = 0;
  for (std::size_t l = 0; l < n; ++l) {
    links[l] = link;
    if (ends.contains(l)) ++link;
  }
  return links;
}

LayerCosts chain_of(const LayerCosts& layers) {
  const std::vector<std::int32_t> links = chain_links(layers);
  LayerCosts chain;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (chain.empty() || links[l] != links[l - 1]) {
      chain.push_back({.name = layers[l].name});
      if (chain.size() > 1) chain.back().inputs = {static_cast<std::int32_t>(chain.size()) - 2};
    }
    LayerCost& link = chain.back();
    link.name = layers[l].name;
    link.forward = link.forward + layers[l].forward;
    link.backward = link.backward + layers[l].backward;
    link.weights = link.weights + layers[l].weights;
    link.step = link.step + layers[l].step;
    link.output = layers[l].output;
  }
  return chain;
}

std::vector<GraphState> antichain_states(const LayerCosts& layers, std::size_t limit) {
  if (layers.empty()) return {};
  Antichains antichains(layers);
  if (!antichains.walk(limit)) return {};
  const Members order = antichains.order();
  std::vector<std::int32_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[at(order[i])] = static_cast<std::int32_t>(i);
  std::vector<GraphState> states;
  for (const std::int32_t number : order) states.push_back(antichains.state(number));
  std::vector<std::set<std::int32_t>> earlier(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    states[i].predecessors.assign(earlier[i].begin(), earlier[i].end());
    for (const std::int32_t to : antichains.next()[at(order[i])]) {
      std::set<std::int32_t>& set = earlier[at(place[at(to)])];
      set.insert(earlier[i].begin(), earlier[i].end());
      set.insert(static_cast<std::int32_t>(i));
    }
  }
  return states;
}

}  // namespace gputwin
