// PipeDream's planner against hand-worked chains, exhaustive search, and figures that its authors'
// program gives on the profiles they published.
#include "strategies/layouts/pipedream.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace gputwin {
namespace {

constexpr BytesPerSecond kEthernet(1.25e9), kInside(10e9);

LayerCosts chain(const std::vector<double>& times, std::int64_t output, std::int64_t weights) {
  LayerCosts layers;
  for (std::size_t l = 0; l < times.size(); ++l) {
    LayerCost layer;
    layer.forward = Seconds(times[l] / 3);
    layer.backward = Seconds(times[l] * 2 / 3);
    layer.output = Bytes(output);
    layer.weights = Bytes(weights);
    layers.push_back(layer);
    if (l > 0) layers.back().inputs = {static_cast<std::int32_t>(l) - 1};
  }
  return layers;
}

// The folder above the sources that holds profiles too large for the repository; empty if absent.
std::filesystem::path profiles() {
  std::filesystem::path folder = GPUTWIN_SOURCE_DIR;
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    const auto found = folder / "shared" / "data" / "layer_profiles";
    if (std::filesystem::exists(found)) return found;
  }
  return {};
}

// Cells of a line of CSV; quoted cells may hold commas.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> list(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      list.emplace_back();
    } else {
      if (c != '\r') list.back() += c;
    }
  }
  return list;
}

double sum_of(std::string text) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ';') c = ' ';
  }
  std::istringstream in(text);
  double sum = 0, one = 0;
  while (in >> one) sum += one;
  return sum;
}

// Reads a profile as the planner's authors do: without inputs.
LayerCosts profile(const std::string& name) {
  std::ifstream layer_file(profiles() / (name + ".layers.csv"));
  std::ifstream edge_file(profiles() / (name + ".edges.csv"));
  LayerCosts layers;
  std::map<std::string, std::int32_t> numbers;
  std::string line;
  std::getline(layer_file, line);
  while (std::getline(layer_file, line)) {
    const auto c = cells(line);
    if (c[1].starts_with("Input")) continue;
    numbers[c[0]] = static_cast<std::int32_t>(layers.size());
    layers.push_back({.name = c[1],
                      .forward = Seconds(std::stod(c[2]) / 1e3),
                      .backward = Seconds(std::stod(c[3]) / 1e3),
                      .output = Bytes(std::llround(sum_of(c[4]))),
                      .weights = Bytes(std::llround(sum_of(c[5]))),
                      .inputs = {}});
  }
  std::getline(edge_file, line);
  while (std::getline(edge_file, line)) {
    const auto c = cells(line);
    if (!numbers.contains(c[0])) continue;
    layers[static_cast<std::size_t>(numbers.at(c[1]))].inputs.push_back(numbers.at(c[0]));
  }
  return layers;
}

PipeDreamPlan planned(const std::string& name, const std::vector<PlannerLevel>& levels) {
  return pipedream_plan(antichain_states(profile(name)), levels);
}

// Two layers of 3 s and 1 s, next to no bytes, four machines: three replicas of the first and one
// of the second make 1 s a minibatch.
TEST(PipeDream, GivesTheSlowLayerThreeMachines) {
  const auto plan = pipedream_plan(antichain_states(chain({3, 1}, 1, 1)), {{4, kEthernet}});
  EXPECT_THAT(plan.top(), testing::ElementsAre(PlannedStage{0, 1, 3}, PlannedStage{1, 2, 1}));
  EXPECT_NEAR(plan.time.value, 1.0, 1e-6);
  EXPECT_NEAR(plan.one_machine.value, 4.0, 1e-12);
}

// Weights of 1.25 GB in the second layer: each further replica costs 4 (m-1)/m seconds over m. So
// data parallelism on two machines takes (4 + 2) / 2 = 3 s, a cut max(3, 1) = 3 s plus nothing; at
// 2.5 GB data parallelism takes 4 s and the cut wins.
TEST(PipeDream, CutsBeforeHeavyWeights) {
  LayerCosts layers = chain({3, 1}, 1, 0);
  layers[1].weights = Bytes(2'500'000'000);
  const auto plan = pipedream_plan(antichain_states(layers), {{2, kEthernet}});
  EXPECT_THAT(plan.top(), testing::ElementsAre(PlannedStage{0, 1, 1}, PlannedStage{1, 2, 1}));
  EXPECT_NEAR(plan.time.value, 3.0, 1e-6);
  EXPECT_NEAR(plan.data_parallel.value, 4.0, 1e-6);
}

// A diamond 0 -> {1, 2} -> 3: cuts after 0, after 0 and 1, after 0 and 2, after all three, after 3.
TEST(Antichains, OfADiamond) {
  LayerCosts layers = chain({1, 1, 1, 1}, 8, 0);
  layers[2].inputs = {0};
  layers[3].inputs = {1, 2};
  const auto states = antichain_states(layers);
  ASSERT_EQ(states.size(), 5u);
  EXPECT_NEAR(states.front().time.value, 1, 1e-12);
  EXPECT_NEAR(states.back().time.value, 4, 1e-12);
  EXPECT_EQ(states.back().predecessors.size(), 4u);
  // After 0 and 1 both outputs cross the cut: 2 still reads 0.
  EXPECT_EQ(states[1].output.value, 16);
  EXPECT_TRUE(antichain_states(layers, 4).empty());
  EXPECT_THAT(chain_links(layers), testing::ElementsAre(0, 1, 1, 1));
  EXPECT_NEAR(chain_of(layers)[1].forward.value, 1.0, 1e-12);
}

// Figures of the authors' program on their VGG-16 profile: 4 machines at 1.25 GB/s.
TEST(PipeDream, Vgg16OnFourMachines) {
  if (profiles().empty()) GTEST_SKIP() << "no profiles beside the sources";
  const auto plan = planned("vgg16_image_classification", {{4, kEthernet}});
  EXPECT_THAT(plan.top(), testing::ElementsAre(PlannedStage{0, 17, 3}, PlannedStage{17, 40, 1}));
  EXPECT_NEAR(plan.time.value, 0.176349, 1e-4 * 0.176349);
  EXPECT_NEAR(plan.one_machine.value / plan.time.value, 3.8137, 4e-4);
  EXPECT_NEAR(plan.data_parallel.value / plan.time.value, 2.8364, 3e-4);
}

TEST(PipeDream, FourNodesOfFour) {
  if (profiles().empty()) GTEST_SKIP() << "no profiles beside the sources";
  const std::vector<PlannerLevel> levels{{4, kInside}, {4, kEthernet}};
  const auto vgg = planned("vgg16_image_classification", levels);
  EXPECT_THAT(vgg.top(), testing::ElementsAre(PlannedStage{0, 32, 3}, PlannedStage{32, 40, 1}));
  EXPECT_NEAR(vgg.time.value, 0.067134, 1e-4 * 0.067134);
  EXPECT_NEAR(vgg.one_machine.value / vgg.time.value, 10.018, 1e-3);
  EXPECT_NEAR(vgg.data_parallel.value / vgg.time.value, 2.0172, 2e-4);
  const auto alexnet = planned("alexnet_image_classification", levels);
  EXPECT_NEAR(alexnet.time.value, 0.0150995, 1e-4 * 0.0150995);
  EXPECT_NEAR(alexnet.data_parallel.value / alexnet.time.value, 3.0846, 3e-4);
  const auto resnet = planned("resnet50_image_classification", levels);
  EXPECT_EQ(resnet.top().size(), 1u);
  EXPECT_EQ(resnet.top()[0].replicas, 4);
  EXPECT_EQ(resnet.levels[0].size(), 4u);
  EXPECT_NEAR(resnet.time.value, 0.0432085, 1e-4 * 0.0432085);
  EXPECT_NEAR(resnet.data_parallel.value / resnet.time.value, 1.0406, 1e-4);
}

}  // namespace
}  // namespace gputwin
