// Layouts that cannot be are a value that says why, and what would be right.
#include <gtest/gtest.h>

#include "strategies/strategy.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

std::string reason(const Layout& layout, std::int64_t global_batch = 4, std::int32_t gpus = 64,
                   const char* stack = "megatron-core") {
  Job job = tiny_job(global_batch);
  job.stack = stack;
  auto outcome = make_plan(tiny_gpt(), one_node(gpus), layout, job);
  const auto* refused = std::get_if<Infeasible>(&outcome);
  if (refused == nullptr) return "feasible";
  EXPECT_FALSE(refused->fix.empty());
  return refused->reason;
}

TEST(Feasibility, RefusesWhatCannotBe) {
  EXPECT_EQ(reason(Layout{}), "feasible");
  EXPECT_EQ(reason({.tp = 3}), "tp 3 does not divide the attention heads (4)");
  EXPECT_EQ(reason({.pp = 8}), "8 pipeline chunks are too many for 4 layers");
  EXPECT_EQ(reason({.tp = 2, .pp = 2, .dp = 2}, 4, 4),
            "the layout needs 8 GPUs, the cluster has 4");
  EXPECT_EQ(reason({.dp = 3}, 4), "micro_batch x dp (3) does not divide the global batch (4)");
  EXPECT_EQ(reason({.cp = 5}), "cp 5 cuts a sequence into 10 chunks, which does not divide it (4)");
  EXPECT_EQ(reason({.dp = 4, .zero = 4}), "there is no ZeRO level 4");
  EXPECT_EQ(reason({.dp = 4, .zero = 3, .hsdp_group = 3}),
            "hsdp_group 3 does not divide dp x cp (4)");
  EXPECT_EQ(reason({.dp = 4, .zero = 1, .hsdp_group = 2}), "hybrid sharding needs ZeRO 2 or 3");
  EXPECT_EQ(reason({.cp = 2, .cp_comm = ContextComm::Ring}),
            "the ring exchange joins parts of attention by their log-sum-exp, which unfused "
            "attention does not keep");
  EXPECT_EQ(reason({.tp = 4, .cp = 2, .cp_comm = ContextComm::AllToAll}),
            "the all-to-all exchange trades heads for tokens: cp 2 does not divide the 1 "
            "key/value heads of a tensor-parallel rank");
  EXPECT_EQ(reason({.sp = true}), "sequence parallelism needs tp > 1");
  EXPECT_EQ(reason({.pp = 2, .schedule = Schedule::None}), "pp 2 needs a schedule");
  EXPECT_EQ(reason({.pp = 2, .vpp = 2, .schedule = Schedule::Interleaved}, 3),
            "the interleaved schedule needs micro-batches (3) that are a multiple of pp (2)");
  EXPECT_EQ(reason({.pp = 2, .stage_layers = {1, 2}}),
            "stage_layers must list 2 chunks with 4 layers in all");
  EXPECT_EQ(reason(Layout{}, 4, 64, "abacus"), "feasible");  // with the nearest kernel table
}

TEST(Feasibility, RefusesEncodersWhoseAttentionIsCut) {
  Transformer encoder = tiny_gpt();
  encoder.causal = false;
  const auto refused = [&](const Layout& layout) {
    const auto outcome = make_plan(encoder, one_node(8), layout, tiny_job(4));
    const auto* no = std::get_if<Infeasible>(&outcome);
    return no == nullptr ? "feasible" : no->reason;
  };
  EXPECT_EQ(refused({.tp = 2}), "feasible");
  EXPECT_EQ(refused({.cp = 2}), "not lowered yet: encoders with context parallelism");
  encoder.window = 2;
  EXPECT_EQ(refused(Layout{}), "not lowered yet: encoders with latent or windowed attention");
}

TEST(Feasibility, NamesTheKernelTableOfAnUnknownStack) {
  Job job = tiny_job(4);
  EXPECT_TRUE(assumptions(Layout{}, job).empty());
  job.stack = "abacus";
  EXPECT_EQ(assumptions({.dp = 2, .zero = 3}, job),
            (std::vector<std::string>{"software stack \"abacus\" has no kernel table of its own; "
                                      "that of \"torch\" is used"}));
}

TEST(Feasibility, AcceptsUnevenStages) {
  EXPECT_EQ(reason({.pp = 2, .stage_layers = {1, 3}}), "feasible");
  EXPECT_EQ(reason({.pp = 3}), "feasible");
}

TEST(Steps, AreListed) {
  std::vector<std::string> names;
  for (const StepInfo& s : steps()) {
    if (!s.is_schedule) names.push_back(s.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"lower", "compress", "recompute", "overlap", "split",
                                             "derive", "schedule", "offload", "verify"}));
  std::vector<StepTime> times;
  make_plan(tiny_gpt(), one_node(1), Layout{}, tiny_job(1), &times);
  ASSERT_EQ(times.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(times[i].name, names[i]);
}

}  // namespace
}  // namespace gputwin
