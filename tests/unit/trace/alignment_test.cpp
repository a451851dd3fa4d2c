#include "sim/trace/alignment.h"

#include <gtest/gtest.h>

#include "sim/trace/run_comparison.h"
#include "tests/unit/trace/trace_world.h"

namespace gputwin {
namespace {

/// A job on `ranks` ranks: per iteration two micro-batches of a gemm of `gemm` and an all-reduce.
Store job(std::int32_t ranks, std::uint32_t iterations, Ps gemm, const char* op = "fc1") {
  StoreBuilder builder;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto p = builder.process({"rank " + std::to_string(r), "stage0", r, 0});
    const auto compute = builder.thread(p, "compute", 0), tp = builder.thread(p, "tp", 1);
    const auto d = builder.definition(framed("F/mb", std::string("/") + op, SliceKind::Gemm));
    const auto c = builder.definition(named("all_reduce", SliceKind::TpComm));
    for (std::uint32_t i = 0; i < iterations; ++i) {
      const Ps at = 200 * Ps{i};
      builder.slice(compute, at, gemm, d, 0, i);
      builder.slice(compute, at + 50, gemm, d, 1, i);
      builder.slice(tp, at + 100, 20, c, kUnframed, i);
    }
  }
  return builder.finish("job");
}

// One predicted iteration of 2 ranks x 3 slices against three measured ones: each measured slice
// meets the predicted one, whichever run comes first, and nothing stands alone.
TEST(Align, OneIterationStandsForEach) {
  const Store one = job(2, 1, 40), three = job(2, 3, 44);
  EXPECT_EQ(iterations_of(three), 3);
  for (const auto& [a, b] : {std::pair(&one, &three), std::pair(&three, &one)}) {
    const Alignment found = align(*a, *b);
    EXPECT_EQ(found.pairs.size(), 18u);
    EXPECT_TRUE(found.only_a.empty());
    EXPECT_TRUE(found.only_b.empty());
    for (const SlicePair& pair : found.pairs) {
      EXPECT_EQ(a->definition(pair.a).op, b->definition(pair.b).op);
      EXPECT_EQ(a->frame(pair.a), b->frame(pair.b));
    }
  }
}

// Four ranks against two: the other two are not missing, they were not recorded.
TEST(Align, TakesCommonRanks) {
  const Alignment found = align(job(4, 1, 40), job(2, 1, 40));
  EXPECT_EQ(found.common_ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(found.pairs.size(), 6u);
  EXPECT_TRUE(found.only_a.empty());
}

// The gemm goes by another name in B: paired by its place, and said.
TEST(Align, GuessesRenamedOperations) {
  const Alignment found = align(job(1, 1, 40, "fc1"), job(1, 1, 40, "ampere_gemm"));
  ASSERT_EQ(found.renamed.size(), 1u);
  EXPECT_EQ(found.renamed.at("fc1"), "ampere_gemm");
  EXPECT_EQ(found.pairs.size(), 3u);
}

/// A profile of a rank: in each of `iterations` steps `gemms` kernels of one name and one of
/// another.
Store profile(std::uint32_t iterations, std::uint32_t gemms, bool last_whole = true) {
  StoreBuilder builder;
  const auto p = builder.process({"gpu 0", "", 0, -1});
  const auto host = builder.thread(p, "host", 0), gpu = builder.thread(p, "stream 7", 1);
  const auto kernel = [&](const char* name, SliceKind kind) {
    Definition d = named(name, kind, Definition::kNoLayer);
    d.phase = "kernel";
    return builder.definition(d);
  };
  const auto gemm = kernel("sm90_gemm", SliceKind::Gemm),
             flash = kernel("flash", SliceKind::Attention);
  for (std::uint32_t i = 0; i < iterations; ++i) {
    Definition step = named("ProfilerStep#" + std::to_string(i), SliceKind::Other);
    step.phase = "user_annotation";
    builder.slice(host, 1000 * Ps{i}, 1000, builder.definition(step));
    const bool whole = last_whole || i + 1 < iterations;
    for (std::uint32_t k = 0; k < gemms - (whole ? 0 : 1); ++k) {
      builder.slice(gpu, 1000 * Ps{i} + 20 * Ps{k}, 10 + k, gemm);
    }
    builder.slice(gpu, 1000 * Ps{i} + 900, 50, flash);
  }
  return builder.finish("profile");
}

/// A prediction of `gemms` matrix products in layers of their own, and two attention kernels.
Store prediction(std::int32_t gemms) {
  StoreBuilder builder;
  const auto t = builder.thread(builder.process({"rank 0", "", 0, 0}), "compute", 0);
  for (std::int32_t k = 0; k < gemms; ++k) {
    builder.slice(t, 20 * Ps{k}, 10 + k, builder.definition(named("fc1", SliceKind::Gemm, k)));
  }
  for (std::int32_t k = 0; k < 2; ++k) {
    builder.slice(t, 900 + 50 * Ps{k}, 20,
                  builder.definition(named("sdpa", SliceKind::Attention, k)));
  }
  return builder.finish("prediction");
}

// 40 products in 40 layers against 40 kernels of one name in each of 3 steps: the n-th is the n-th.
// Two attention kernels against one are too different, and stand alone: 2 in A, 3 in B.
TEST(Align, PairsByKindAndOrderWhereNoNameIsShared) {
  const Store a = prediction(40), b = profile(3, 40);
  const Alignment found = align(a, b);
  ASSERT_EQ(found.pairs.size(), 120u);
  for (const SlicePair& pair : found.pairs) {
    EXPECT_EQ(pair.by, PairedBy::Order);
    EXPECT_EQ(a.duration(pair.a), b.duration(pair.b));
  }
  EXPECT_EQ(found.only_a.size(), 2u);
  EXPECT_EQ(found.only_b.size(), 3u);
  ASSERT_EQ(found.unordered.size(), 1u);
  EXPECT_EQ(found.unordered[0].kind, SliceKind::Attention);
  EXPECT_EQ(found.unordered[0].a, 2);
  EXPECT_EQ(found.unordered[0].b, 1);
}

// 38 of 40 are within 5 %, and the last two of every step stand alone; 37 are not. Nor are steps
// that differ among themselves: 40, 40 and 39.
TEST(Align, PairsByOrderOnlyWhatIsAlmostAsMany) {
  const Alignment near = align(prediction(38), profile(3, 40));
  EXPECT_EQ(near.pairs.size(), 114u);
  EXPECT_EQ(near.only_b.size(), 6u + 3u);
  const Alignment far = align(prediction(37), profile(3, 40));
  EXPECT_TRUE(far.pairs.empty());
  EXPECT_EQ(far.unordered.size(), 2u);
  const Alignment cut = align(prediction(40), profile(3, 40, false));
  EXPECT_TRUE(cut.pairs.empty());
  EXPECT_EQ(cut.unordered.size(), 2u);
}

// A kind of which some pair by name is not paired by order: what is left over there is other work.
TEST(Align, LeavesTheRestOfAKindAlone) {
  const auto run = [](const char* second) {
    StoreBuilder builder;
    const auto t = builder.thread(builder.process({"rank 0", "", 0, 0}), "compute", 0);
    builder.slice(t, 0, 10, builder.definition(named("fc1", SliceKind::Gemm, 0)));
    builder.slice(t, 20, 10, builder.definition(named(second, SliceKind::Gemm, second[0])));
    return builder.finish("");
  };
  const Alignment found = align(run("a"), run("b"));
  EXPECT_EQ(found.pairs.size(), 1u);
  EXPECT_EQ(found.only_a.size(), 1u);
  EXPECT_EQ(found.only_b.size(), 1u);
}

// Three all-reduces in B against one in A: two stand alone there.
TEST(Align, KeepsWhatHasNoCounterpart) {
  const auto with = [](int count) {
    StoreBuilder builder;
    const auto t = builder.thread(builder.process({"rank 0", "", 0, -1}), "tp", 0);
    const auto c = builder.definition(named("all_reduce", SliceKind::TpComm));
    for (int i = 0; i < count; ++i) builder.slice(t, 10 * i, 5, c);
    return builder.finish("");
  };
  const Alignment found = align(with(1), with(3), 1, 1);
  EXPECT_EQ(found.pairs.size(), 1u);
  EXPECT_EQ(found.only_b.size(), 2u);
}

/// Two ranks joined by an all-reduce: rank 0 comes at 10, rank 1 at 40; both leave at 60.
Store late_rank() {
  StoreBuilder builder;
  std::uint32_t threads[2];
  const auto g = builder.definition(named("fc1", SliceKind::Gemm));
  const auto c = builder.definition(named("all_reduce", SliceKind::TpComm));
  for (std::int32_t r = 0; r < 2; ++r) {
    const auto p = builder.process({"rank " + std::to_string(r), "", r, -1});
    threads[r] = builder.thread(p, "compute", 0);
    const Ps arrives = r == 0 ? 10 : 40;
    builder.slice(threads[r], 0, arrives, g);
    builder.slice(threads[r], arrives, 60 - arrives, c);
  }
  builder.flow(threads[0], 10, threads[1], 40);
  return builder.finish("late");
}

TEST(WaitingTimes, EndWhenTheLastMemberComes) {
  const Store store = late_rank();
  const std::vector<Ps> waits = waiting_times(store);
  EXPECT_EQ(waits, (std::vector<Ps>{0, 30, 0, 0}));
}

// Per rank, of 60: rank 0 computes 10, waits 30, transfers 20; rank 1 computes 40, transfers 20.
// Against a run in which nobody is late (compute 10, transfer 20, total 30) the mean of the ranks
// grows by 15 of compute and 15 of waiting: 30 in all, and transfer by nothing.
TEST(CompareRuns, PartsSumToTheDifference) {
  StoreBuilder builder;
  const auto g = builder.definition(named("fc1", SliceKind::Gemm));
  const auto c = builder.definition(named("all_reduce", SliceKind::TpComm));
  for (std::int32_t r = 0; r < 2; ++r) {
    const auto t = builder.thread(builder.process({"rank", "", r, -1}), "compute", 0);
    builder.slice(t, 0, 10, g);
    builder.slice(t, 10, 20, c);
  }
  const RunComparison found = compare_runs(builder.finish("on time"), late_rank());
  const auto delta = [&found](TimePart part) {
    const auto p = static_cast<std::size_t>(part);
    return std::llround((found.b[p] - found.a[p]) * 1e12);
  };
  EXPECT_EQ(delta(TimePart::Compute), 15);
  EXPECT_EQ(delta(TimePart::Wait), 15);
  EXPECT_EQ(delta(TimePart::TpComm), 0);
  EXPECT_EQ(delta(TimePart::Bubble), 0);
  EXPECT_DOUBLE_EQ(found.iteration_b - found.iteration_a, 30e-12);
  // The transfer itself is as long as predicted, 20 ps; the gemms take 10 and 40 instead of 10.
  ASSERT_EQ(found.kinds.size(), 2u);
  EXPECT_DOUBLE_EQ(found.kinds[0].mean, (0.0 + 10.0 / 40 - 1) / 2);
  EXPECT_DOUBLE_EQ(found.kinds[0].p95, 0.75);
  EXPECT_DOUBLE_EQ(found.kinds[1].absolute, 0);
}

// Communication under computation is hidden: of the all-reduce [30,70) beside gemms [0,40) and
// [60,100) only 20 are exposed.
TEST(CompareRuns, CountsWhatIsExposed) {
  StoreBuilder builder;
  const auto p = builder.process({"rank 0", "", 0, 0});
  const auto a = builder.thread(p, "compute", 0), b = builder.thread(p, "tp", 1);
  const auto g = builder.definition(named("fc1", SliceKind::Gemm));
  builder.slice(a, 0, 40, g);
  builder.slice(a, 60, 40, g);
  builder.slice(b, 30, 40, builder.definition(named("all_reduce", SliceKind::TpComm)));
  const Store store = builder.finish("");
  const RunComparison found = compare_runs(store, store);
  EXPECT_EQ(std::llround(found.a[static_cast<std::size_t>(TimePart::Compute)] * 1e12), 80);
  EXPECT_EQ(std::llround(found.a[static_cast<std::size_t>(TimePart::TpComm)] * 1e12), 20);
  EXPECT_EQ(found.pairs, 3);
  EXPECT_TRUE(found.ops.empty() || found.ops[0].time_a == found.ops[0].time_b);
}

// Three ranks whose kernel takes 10; over that of rank 2 lies a range of 90 named after optimizers.
// The range is no work: no part, no operation, no straggler, and nothing that lacks a counterpart.
TEST(CompareRuns, TakesNoRangeForWork) {
  const auto job = [](Ps range) {
    StoreBuilder builder;
    const auto definition = [&builder](const char* name, const char* category) {
      Definition d = named(name, slice_kind(name, category, "stream 7"));
      d.phase = category;
      return builder.definition(std::move(d));
    };
    const auto kernel = definition("sgd_kernel", "kernel");
    const auto around = definition("Optimizer.step#SGD.step", "gpu_user_annotation");
    for (std::int32_t r = 0; r < 3; ++r) {
      const auto t = builder.thread(builder.process({"rank", "", r, -1}), "stream 7", 0);
      builder.slice(t, 0, 10, kernel);
      builder.slice(t, 90, 10, kernel);
      if (r == 2 && range > 0) builder.slice(t, 0, range, around);
    }
    return builder.finish("");
  };
  const RunComparison found = compare_runs(job(0), job(100));
  const auto optimizer = static_cast<std::size_t>(TimePart::Optimizer);
  EXPECT_DOUBLE_EQ(found.b[optimizer], 20e-12);
  EXPECT_DOUBLE_EQ(found.b[optimizer], found.a[optimizer]);
  EXPECT_TRUE(found.stragglers_b.empty());
  EXPECT_TRUE(found.only_b.empty());
  EXPECT_EQ(found.ops.size(), 1u);
}

// Mean 11.25, deviation 2.17: 15 is beyond both 13.42 and 12.375. Of {10, 10, 10, 10.9} the last
// is beyond one deviation but within 10 % of the mean.
TEST(Stragglers, NeedBothConditions) {
  EXPECT_EQ(stragglers({10, 10, 10, 15}), std::vector<std::size_t>{3});
  EXPECT_TRUE(stragglers({10, 10, 10, 10.9}).empty());
  EXPECT_TRUE(stragglers({10, 20}).empty());
}

TEST(JointStore, HoldsBothRunsFromTheirBeginnings) {
  const Store a = job(2, 1, 40), b = late_rank();
  const Store both = joint_store(a, b);
  EXPECT_EQ(both.size(), a.size() + b.size());
  ASSERT_EQ(both.processes.size(), 4u);
  EXPECT_EQ(both.processes[2].name, "B · rank 0");
  EXPECT_EQ(both.flows().size(), b.flows().size());
}

}  // namespace
}  // namespace gputwin
