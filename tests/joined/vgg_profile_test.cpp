// PipeDream's planner on the VGG-16 profile that ships with the models: the figures of its authors.
#include <gmock/gmock.h>

#include "sim/app/scenario.h"
#include "strategies/layouts/pipedream.h"

namespace gputwin {
namespace {

constexpr std::int64_t kMinibatch = 128;

LayerCosts costs_of(const LayerGraph& graph) {
  LayerCosts layers;
  for (const GraphLayer& l : graph.layers) {
    layers.push_back({.name = l.name,
                      .forward = l.forward_time * kMinibatch,
                      .backward = l.backward_time * kMinibatch,
                      .output = Bytes(4 * kMinibatch * l.output.elements()),
                      .weights = Bytes(4 * l.stated_weights),
                      .inputs = l.inputs});
  }
  return layers;
}

TEST(VggProfile, PipeDreamGivesItsPublishedPlan) {
  const Workload model =
      load_model("vgg16_profile", {std::filesystem::path(GPUTWIN_SOURCE_DIR) / "scenarios"});
  const auto plan = pipedream_plan(antichain_states(costs_of(std::get<LayerGraph>(model))),
                                   {{4, BytesPerSecond(1.25e9)}});
  EXPECT_THAT(plan.top(), testing::ElementsAre(PlannedStage{0, 17, 3}, PlannedStage{17, 40, 1}));
  EXPECT_NEAR(plan.time.value, 0.176349, 1e-4 * 0.176349);
  EXPECT_NEAR(plan.one_machine.value / plan.time.value, 3.8137, 4e-4);
}

}  // namespace
}  // namespace gputwin
