// Every combination of layout choices on tiny models gives a plan without races, deadlocks or
// leaks.
#include <gtest/gtest.h>

#include "sim/core/plan_text.h"
#include "sim/core/verify.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

struct Degrees {
  std::int32_t tp, pp, vpp, dp;
  bool sp;
  std::int32_t zero;
};

std::vector<Degrees> all_degrees() {
  std::vector<Degrees> list;
  for (const std::int32_t tp : {1, 2}) {
    for (const bool sp : {false, true}) {
      for (const std::int32_t pp : {1, 2, 4}) {
        for (const std::int32_t vpp : {1, 2}) {
          for (const std::int32_t dp : {1, 2}) {
            for (const std::int32_t zero : {0, 1, 2, 3}) {
              if ((sp && tp == 1) || (vpp > 1 && pp != 2)) continue;
              list.push_back({tp, pp, vpp, dp, sp, zero});
            }
          }
        }
      }
    }
  }
  return list;
}

Layout layout_of(const Degrees& d, Schedule schedule) {
  Layout l;
  l.tp = d.tp;
  l.pp = d.pp;
  l.vpp = d.vpp;
  l.dp = d.dp;
  l.sp = d.sp;
  l.zero = d.zero;
  l.schedule = d.vpp > 1 ? Schedule::Interleaved : schedule;
  l.bucket_elements = 500;
  return l;
}

std::string label(const Layout& l) {
  return "tp" + std::to_string(l.tp) + (l.sp ? "sp" : "") + " pp" + std::to_string(l.pp) + " vpp" +
         std::to_string(l.vpp) + " dp" + std::to_string(l.dp) + " zero" + std::to_string(l.zero) +
         " recompute" + std::to_string(static_cast<int>(l.recompute));
}

void expect_sound(const Transformer& model, const Layout& layout, const Job& job) {
  SCOPED_TRACE(model.name + " " + label(layout) + " " + job.stack);
  const Plan plan = plan_of(model, layout, job);
  for (const Violation& v : verify(plan, Depth::Races)) {
    ADD_FAILURE() << v.rule << " at " << v.where << ": " << v.what;
  }
}

// 4 micro-batches of one sequence for every data-parallel rank.
class EveryLayout : public testing::TestWithParam<Recompute> {};

TEST_P(EveryLayout, IsSoundForAGptWithUnfusedAttention) {
  for (const Degrees& d : all_degrees()) {
    Layout layout = layout_of(d, Schedule::OneFOneB);
    layout.recompute = GetParam();
    layout.recompute_layers = {1};
    expect_sound(tiny_gpt(), layout, tiny_job(4 * d.dp));
  }
}

TEST_P(EveryLayout, IsSoundForALlamaWithFlashAttention) {
  for (const Degrees& d : all_degrees()) {
    Layout layout = layout_of(d, Schedule::Gpipe);
    layout.recompute = GetParam();
    layout.recompute_layers = {1};
    Job job = tiny_job(4 * d.dp);
    job.attention = AttentionKernel::Flash2;
    expect_sound(tiny_llama(), layout, job);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, EveryLayout,
                         testing::Values(Recompute::None, Recompute::Selective, Recompute::Full,
                                         Recompute::Block));

TEST(Plans, AreSoundForEveryStackWithDropout) {
  for (const char* stack : {"megatron-lm-2019", "megatron-lm-2020", "megatron-lm-2021",
                            "megatron-lm-2022", "megatron-core", "torch", "generic"}) {
    for (const bool sp : {false, true}) {
      Layout layout = layout_of({2, 2, 1, 2, sp, 0}, Schedule::OneFOneB);
      Transformer model = tiny_gpt();
      model.dropout = 0.1;
      Job job = tiny_job(8);
      job.stack = stack;
      expect_sound(model, layout, job);
    }
  }
}

TEST(Plans, MayHaveEndsWithoutLayers) {
  // 2 layers over 4 chunks: the first holds the embedding alone, the last the head alone.
  Transformer model = tiny_gpt();
  model.layers = 2;
  for (const std::int32_t vpp : {1, 2}) {
    Layout layout = layout_of({2, vpp == 1 ? 4 : 2, vpp, 1, false, 0}, Schedule::OneFOneB);
    Job job = tiny_job(4);
    job.stack = "megatron-lm-2021";
    expect_sound(model, layout, job);
  }
}

TEST(Plans, SurviveBeingPrintedAndParsed) {
  const Plan plan =
      plan_of(tiny_llama(), layout_of({2, 2, 2, 1, true, 0}, Schedule::OneFOneB), tiny_job(2));
  const std::string text = to_text(plan);
  EXPECT_EQ(to_text(parse_plan(text)), text);
}

TEST(Plans, AreTheSameEveryTime) {
  const Layout layout = layout_of({2, 2, 1, 2, true, 1}, Schedule::OneFOneB);
  EXPECT_TRUE(plan_of(tiny_gpt(), layout, tiny_job(8)) == plan_of(tiny_gpt(), layout, tiny_job(8)));
}

}  // namespace
}  // namespace gputwin
