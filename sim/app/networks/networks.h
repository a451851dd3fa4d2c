// The networks that model files name by family: VGG, ResNet, AmoebaNet-D, GNMT, BERT and others.
#pragma once

#include <string>
#include <vector>

#include "sim/core/workload.h"

namespace gputwin {

/// What a family is told; 0 or empty: the family's own default. Which numbers a family reads stands
/// in scenarios/README.md.
struct NetworkOptions {
  std::string family;
  std::int64_t depth = 0, width = 0;    // as the family's papers count them
  std::int64_t image = 0, classes = 0;  // pixels on a side; labels
  std::int64_t layers = 0, hidden = 0, heads = 0, ffn = 0, vocab = 0;
  std::int64_t loss_positions = 0;  // of BERT's masked language model
  std::int64_t sequence = 0;        // tokens of a sample
};

/// Families by name, in the order of the documentation.
std::vector<std::string> network_families();

/// A problem with the options, or empty: which depths a family knows, what must divide what.
std::string network_problem(const NetworkOptions& options);

/// The graph; `options` have no problem.
LayerGraph make_network(const std::string& name, const NetworkOptions& options);

// One family each; where the numbers come from stands with the definition.
LayerGraph make_vgg(const std::string& name, const NetworkOptions& o);
LayerGraph make_alexnet(const std::string& name, const NetworkOptions& o);
LayerGraph make_resnet(const std::string& name, const NetworkOptions& o);
LayerGraph make_inception(const std::string& name, const NetworkOptions& o);
LayerGraph make_amoebanet(const std::string& name, const NetworkOptions& o);
LayerGraph make_unet(const std::string& name, const NetworkOptions& o);
LayerGraph make_gnmt(const std::string& name, const NetworkOptions& o);
LayerGraph make_lstm(const std::string& name, const NetworkOptions& o);
LayerGraph make_bert(const std::string& name, const NetworkOptions& o);
LayerGraph make_gpt(const std::string& name, const NetworkOptions& o);

}  // namespace gputwin
