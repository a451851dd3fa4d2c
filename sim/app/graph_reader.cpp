#include "sim/app/graph_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/app/networks/networks.h"
#include "sim/app/suggestion.h"

namespace gputwin {
namespace {

constexpr double kBytes = 4;  // of an element of stated tensors

NetworkOptions read_network(const Json& network, std::int64_t sequence) {
  const auto number = [&](const char* key) { return network.value(key, std::int64_t{0}); };
  NetworkOptions o;
  o.family = network.at("family").get<std::string>();
  o.depth = number("depth"), o.width = number("width");
  o.image = number("image"), o.classes = number("classes");
  o.layers = number("layers"), o.hidden = number("hidden"), o.heads = number("heads");
  o.loss_positions = number("loss_positions");
  o.ffn = number("ffn"), o.vocab = number("vocab");
  o.sequence = sequence;
  return o;
}

Extent read_extent(const Json& extent) {
  return {extent.at("channels").get<std::int64_t>(), extent.value("height", std::int64_t{1}),
          extent.value("width", std::int64_t{1})};
}

std::pair<std::int64_t, std::int64_t> read_size(const Json& layer, const char* key,
                                                std::int64_t otherwise) {
  const auto found = layer.find(key);
  if (found == layer.end()) return {otherwise, otherwise};
  if (found->is_array())
    return {found->at(0).get<std::int64_t>(), found->at(1).get<std::int64_t>()};
  return {found->get<std::int64_t>(), found->get<std::int64_t>()};
}

// Reads layers one by one and works out their sizes.
class LayerReader {
 public:
  LayerReader(const ScenarioDocument& document, const Json& model)
      : document_(document), minibatch_(model.value("minibatch", 1.0)) {
    graph_.name = model.value("name", "unnamed");
    graph_.measured_on = model.value("measured_on", "");
    graph_.tokens = model.value("tokens", false);
    if (model.contains("input")) graph_.input = read_extent(model["input"]);
  }

  LayerGraph run(const Json& layers) {
    bool units = false;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      at_ = child_pointer("/model/layers", i);
      units |= layers[i].contains("unit");
      read(layers[i], i);
    }
    const LayerKind last = graph_.layers.back().kind;
    if (last != LayerKind::Loss && last != LayerKind::Stated) {
      throw fault("op", "ends the network, which has no loss", "add { \"op\": \"loss\" }");
    }
    if (units) {
      check_units();
    } else {
      cut_into_units(graph_);
    }
    return std::move(graph_);
  }

 private:
  InputError fault(const char* key, const std::string& problem, const std::string& fix) const {
    return document_.error(at_ + "/" + key, problem, fix);
  }

  void read(const Json& json, std::size_t i) {
    GraphLayer layer;
    const std::string op = json.at("op").get<std::string>();
    layer.name = json.value("name", op + std::to_string(i));
    if (numbers_.contains(layer.name))
      throw fault("name", "names an earlier layer too", "rename it");
    inputs(json, i, layer);
    layer.unit = json.value("unit", 0);
    layer.dropout = json.value("dropout", 0.0);
    layer.heads = json.value("heads", std::int64_t{1});
    layer.causal = json.value("causal", false);
    layer.vocab = json.value("vocab", std::int64_t{0});
    layer.bias = json.value("bias", true);
    shape(json, op, layer);
    numbers_[layer.name] = static_cast<std::int32_t>(i);
    graph_.layers.push_back(std::move(layer));
  }

  void inputs(const Json& json, std::size_t i, GraphLayer& layer) {
    if (!json.contains("from")) {
      if (i > 0) layer.inputs = {static_cast<std::int32_t>(i) - 1};
      return;
    }
    for (const Json& name : json["from"]) {
      const auto found = numbers_.find(name.get<std::string>());
      if (found == numbers_.end()) {
        throw fault("from", "names no earlier layer: " + name.get<std::string>(),
                    "list producers before their consumers");
      }
      layer.inputs.push_back(found->second);
    }
  }

  std::int64_t out(const Json& json) const {
    if (!json.contains("out")) throw fault("out", "is missing", "add the channels of the result");
    return json["out"].get<std::int64_t>();
  }

  void window(const Json& json, GraphLayer& layer, const Extent& in, std::int64_t channels) {
    LayerWindow& w = layer.window;
    std::tie(w.height, w.width) = read_size(json, "kernel", 1);
    std::tie(w.stride_height, w.stride_width) = read_size(json, "stride", 1);
    std::tie(w.pad_height, w.pad_width) = read_size(json, "pad", 0);
    w.groups = json.value("groups", std::int64_t{1});
    if (std::min({w.height, w.width, w.stride_height, w.stride_width}) < 1) {
      throw fault("kernel", "has a side or stride of 0", "write 1 or more");
    }
    if (in.channels % w.groups != 0 || channels % w.groups != 0) {
      throw fault("groups", "does not divide the channels", "set it to 1");
    }
    const std::int64_t rows = in.height + 2 * w.pad_height - w.height;
    const std::int64_t columns = in.width + 2 * w.pad_width - w.width;
    if (rows < 0 || columns < 0) {
      throw fault("kernel", fmt::format("is larger than the {} x {} image", in.height, in.width),
                  "a smaller kernel, or more pad");
    }
    layer.output = {channels, rows / w.stride_height + 1, columns / w.stride_width + 1};
  }

  void stated(const Json& json, GraphLayer& layer) {
    const auto each = [&](const char* key, double scale) {
      return json.value(key, 0.0) * scale / minibatch_;
    };
    layer.kind = LayerKind::Stated;
    layer.forward_time = Seconds(each("forward_ms", 1e-3));
    layer.backward_time = Seconds(each("backward_ms", 1e-3));
    const auto elements = std::llround(each("output_bytes", 1 / kBytes));
    layer.output = {std::max<std::int64_t>(1, elements), 1, 1};
    layer.stated_weights = std::llround(json.value("weight_bytes", 0.0) / kBytes);
  }

  void recurrent(const Json& json, GraphLayer& layer, std::int64_t gates) {
    layer.kind = LayerKind::Recurrent;
    layer.gates = gates;
    layer.output.channels = out(json);
  }

  void shape(const Json& json, const std::string& op, GraphLayer& layer) {
    static const std::map<std::string, LayerKind> same{{"batch-norm", LayerKind::BatchNorm},
                                                       {"layer-norm", LayerKind::LayerNorm},
                                                       {"relu", LayerKind::Relu},
                                                       {"gelu", LayerKind::Gelu},
                                                       {"add", LayerKind::Add},
                                                       {"dropout", LayerKind::Dropout},
                                                       {"loss", LayerKind::Loss}};
    const Extent in = layer.inputs.empty() ? graph_.input : input_of(graph_, layer);
    layer.output = in;
    if (const auto found = same.find(op); found != same.end()) {
      layer.kind = found->second;
      if (op == "add") check_same(layer);
    } else if (op == "conv") {
      layer.kind = LayerKind::Convolution;
      window(json, layer, in, out(json));
    } else if (op == "max-pool" || op == "avg-pool") {
      layer.kind = op == "max-pool" ? LayerKind::MaxPool : LayerKind::AveragePool;
      window(json, layer, in, in.channels);
    } else if (op == "global-pool") {
      layer.kind = LayerKind::AveragePool;
      layer.output = {in.channels, 1, 1};
    } else if (op == "linear") {
      layer.kind = LayerKind::Linear;
      const bool by_position = json.value("positions", false);
      layer.output = by_position ? Extent{out(json), in.height, in.width} : Extent{out(json), 1, 1};
    } else if (op == "concat") {
      concat(layer);
    } else if (op == "upsample") {
      const std::int64_t factor = json.value("factor", std::int64_t{2});
      layer.kind = LayerKind::Upsample;
      layer.output = {in.channels, in.height * factor, in.width * factor};
    } else if (op == "embedding") {
      layer.kind = LayerKind::Embedding;
      if (layer.vocab == 0) throw fault("vocab", "is missing", "add the rows of the table");
      layer.output = {out(json), in.height, 1};
    } else if (op == "attention") {
      attention(layer, in);
    } else if (op == "stated") {
      stated(json, layer);
    } else {
      recurrent(json, layer, op == "lstm" ? 4 : op == "gru" ? 3 : 1);
    }
  }

  void attention(GraphLayer& layer, const Extent& in) const {
    layer.kind = LayerKind::Attention;
    if (in.channels % (3 * layer.heads) != 0) {
      throw fault("heads",
                  fmt::format("do not fit {} features of queries, keys and values", in.channels),
                  "3 x heads divides them");
    }
    layer.output.channels = in.channels / 3;
  }

  void check_same(const GraphLayer& layer) const {
    if (layer.inputs.size() < 2) throw fault("from", "needs two layers", "name both terms");
    for (const std::int32_t l : layer.inputs) {
      if (graph_.layers[static_cast<std::size_t>(l)].output == layer.output) continue;
      throw fault("from", "adds tensors of different sizes", "project one of them first");
    }
  }

  void concat(GraphLayer& layer) const {
    layer.kind = LayerKind::Concat;
    layer.output.channels = 0;
    if (layer.inputs.empty()) throw fault("from", "needs layers to join", "name them");
    for (const std::int32_t l : layer.inputs) {
      const Extent& e = graph_.layers[static_cast<std::size_t>(l)].output;
      if (e.height != layer.output.height || e.width != layer.output.width) {
        throw fault("from", "joins images of different sizes", "pool or pad one of them first");
      }
      layer.output.channels += e.channels;
    }
  }

  void check_units() {
    std::int32_t last = 0;
    for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
      const std::int32_t unit = graph_.layers[i].unit;
      const bool follows = unit == last || (i > 0 && unit == last + 1);
      if (!follows) {
        throw document_.error(child_pointer("/model/layers", i) + "/unit",
                              "does not ascend by one from 0",
                              fmt::format("nearest legal value: {}", last));
      }
      last = unit;
    }
  }

  const ScenarioDocument& document_;
  double minibatch_;
  LayerGraph graph_;
  std::map<std::string, std::int32_t> numbers_;
  std::string at_;
};

}  // namespace

void cut_into_units(LayerGraph& graph) {
  const auto n = static_cast<std::int32_t>(graph.layers.size());
  // The furthest consumer of any layer so far; a layer that alone is read beyond itself is a cut.
  std::int32_t furthest = 0, unit = 0;
  std::vector<std::int32_t> last(graph.layers.size(), 0);
  for (std::int32_t l = 0; l < n; ++l) {
    for (const std::int32_t from : graph.layers[static_cast<std::size_t>(l)].inputs) {
      last[static_cast<std::size_t>(from)] = l;
    }
  }
  for (std::int32_t l = 0; l < n; ++l) {
    graph.layers[static_cast<std::size_t>(l)].unit = unit;
    if (furthest <= l && l + 1 < n) ++unit;
    furthest = std::max(furthest, last[static_cast<std::size_t>(l)]);
  }
}

LayerGraph read_graph(const ScenarioDocument& document, const Json& model, std::int64_t sequence) {
  const bool family = model.contains("network");
  if (family == model.contains("layers")) {
    throw document.error("/model/network", family ? "excludes layers" : "is missing",
                         "write either network or layers");
  }
  if (family) {
    const NetworkOptions options = read_network(model["network"], sequence);
    const std::string problem = network_problem(options);
    if (!problem.empty()) {
      throw document.error("/model/network/family", problem, "change the numbers of the network");
    }
    return make_network(model.value("name", "unnamed"), options);
  }
  return LayerReader(document, model).run(model["layers"]);
}

}  // namespace gputwin
