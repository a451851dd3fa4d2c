#include "sim/trace/queries.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/unit/trace/trace_world.h"

namespace gputwin {
namespace {

// compute: gemm [0,40) mb0, gemm [60,100) mb1; tp: all-reduce [30,70).
Store small() {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"rank 0", "stage0", 0, 0});
  const std::uint32_t a = builder.thread(p, "compute", 0), b = builder.thread(p, "tp", 1);
  const std::uint32_t gemm = builder.definition(framed("F/mb", "/L1/fc1", SliceKind::Gemm));
  const std::uint32_t sum = builder.definition(named("F/L1/tp_all_reduce", SliceKind::TpComm, 1));
  builder.slice(a, 0, 40, gemm, 0);
  builder.slice(a, 60, 40, gemm, 1);
  builder.slice(b, 30, 40, sum);
  return builder.finish("small");
}

// Cut to [10,65): the first gemm counts 30, the second 5, the all-reduce 35.
TEST(Aggregate, CutsSlicesToTheRange) {
  const auto rows = aggregate(small(), {10, 65}, GroupBy::Name);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].key, "F/L1/tp_all_reduce");
  EXPECT_EQ(rows[0].total, 35);
  EXPECT_EQ(rows[1].key, "F/mb*/L1/fc1");
  EXPECT_EQ(rows[1].count, 2);
  EXPECT_EQ(rows[1].total, 35);
  EXPECT_EQ(rows[1].shortest, 5);
  EXPECT_EQ(rows[1].longest, 30);
}

TEST(Aggregate, GroupsByWhatIsAsked) {
  const Store store = small();
  const auto keys = [&store](GroupBy by) {
    std::string out;
    for (const GroupRow& row : aggregate(store, store.range(), by)) out += row.key + ";";
    return out;
  };
  EXPECT_EQ(keys(GroupBy::Kind), "matrix multiply;tp communication;");
  EXPECT_EQ(keys(GroupBy::Stream), "compute;tp;");
  EXPECT_EQ(keys(GroupBy::MicroBatch), "micro-batch 0;micro-batch 1;outside micro-batches;");
  EXPECT_EQ(keys(GroupBy::Process), "rank 0;");
}

// Against brute force on random slices: total and count of every kind, over several ranges.
TEST(Aggregate, EqualsBruteForce) {
  const Store store = random_store(3000, 11);
  const Ps whole = store.range().length();
  for (const TimeRange range : {store.range(), TimeRange{whole / 3, whole / 2}}) {
    std::map<std::string, std::pair<std::int64_t, Ps>> truth;
    for (SliceId s = 0; s < store.size(); ++s) {
      const Ps begin = std::max(store.start(s), range.begin);
      const Ps end = std::min(store.end(s), range.end);
      if (end <= begin) continue;
      auto& row = truth[std::string(label(store.kind(s)))];
      ++row.first;
      row.second += end - begin;
    }
    for (const GroupRow& row : aggregate(store, range, GroupBy::Kind)) {
      EXPECT_EQ(row.total, truth[row.key].second) << row.key;
    }
  }
}

// Compute covers [0,40) and [60,100); of the all-reduce [40,60) shows. Nothing is idle.
TEST(Exposure, CountsCommunicationOnlyWhereNothingComputes) {
  const Exposure e = exposure(small(), 0, {0, 120});
  EXPECT_EQ(e.exposed[static_cast<std::size_t>(SliceKind::Gemm)], 80);
  EXPECT_EQ(e.exposed[static_cast<std::size_t>(SliceKind::TpComm)], 20);
  EXPECT_EQ(e.busy[static_cast<std::size_t>(SliceKind::TpComm)], 40);
  EXPECT_EQ(e.idle, 20);
}

Definition of_profile(const char* name, const char* category) {
  Definition d;
  d.before = d.op = name;
  d.phase = category;
  d.kind = slice_kind(name, category, "stream 7");
  return d;
}

// On the GPU a range "Optimizer.step" [0,100) around a kernel [10,40) and a copy [50,60); on the
// host a step [0,100) around an operator [0,30) that calls another [10,20).
Store annotated() {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"gpu 0", "", 0, 0});
  const std::uint32_t gpu = builder.thread(p, "stream 7", 0), host = builder.thread(p, "host", 1);
  const auto add = [&](std::uint32_t thread, Ps at, Ps time, const char* name, const char* kind) {
    builder.slice(thread, at, time, builder.definition(of_profile(name, kind)));
  };
  add(gpu, 0, 100, "Optimizer.step#SGD.step", "gpu_user_annotation");
  add(gpu, 10, 30, "multi_tensor_apply_kernel", "kernel");
  add(gpu, 50, 10, "Memcpy DtoD", "gpu_memcpy");
  add(host, 0, 100, "ProfilerStep#1", "user_annotation");
  add(host, 0, 30, "aten::linear", "cpu_op");
  add(host, 10, 10, "aten::addmm", "cpu_op");
  return builder.finish("annotated");
}

// Kinds, streams and ranks count the kernel, the copy and the host's 30; the ranges are rows by
// name alone. The operator within the other adds nothing to the host's time.
TEST(Aggregate, CountsNoRangeAsWork) {
  const Store store = annotated();
  const auto totals = [&store](GroupBy by) {
    std::string out;
    for (const GroupRow& row : aggregate(store, store.range(), by)) {
      out += row.key + " " + std::to_string(row.total) + (row.around ? " around;" : ";");
    }
    return out;
  };
  EXPECT_EQ(totals(GroupBy::Kind), "host 30;optimizer 30;copy 10;");
  EXPECT_EQ(totals(GroupBy::Stream), "stream 7 40;host 30;");
  EXPECT_EQ(totals(GroupBy::Process), "gpu 0 70;");
  EXPECT_EQ(totals(GroupBy::Phase),
            "gpu_user_annotation 100 around;user_annotation 100 around;cpu_op 30;kernel 30;"
            "gpu_memcpy 10;");
}

// [10,40) optimizer, [50,60) copy, [0,10) host, and nothing in the other 50 of 100.
TEST(Exposure, IsIdleUnderARangeAlone) {
  const Exposure e = exposure(annotated(), 0, {0, 100});
  EXPECT_EQ(e.busy[static_cast<std::size_t>(SliceKind::Optimizer)], 30);
  EXPECT_EQ(e.busy[static_cast<std::size_t>(SliceKind::Host)], 30);
  EXPECT_EQ(e.exposed[static_cast<std::size_t>(SliceKind::Host)], 10);
  EXPECT_EQ(e.busy[static_cast<std::size_t>(SliceKind::Other)], 0);
  EXPECT_EQ(e.idle, 50);
}

// The copy comes after the kernel, before which nothing had ended; the ranges, which end last, are
// no steps.
TEST(CriticalPath, LooksThroughRanges) {
  const Store store = annotated();
  std::string names;
  for (const PathStep& step : critical_path(store, {0, 100})) {
    names += (step.slice == kNoSlice ? std::string("-") : store.name(step.slice)) + ";";
  }
  EXPECT_EQ(names, "multi_tensor_apply_kernel;-;Memcpy DtoD;");
}

TEST(Search, TakesWordsMicroBatchesLayersAndDurations) {
  const Store store = small();
  EXPECT_EQ(search(store, "fc1").total, 2);
  EXPECT_EQ(search(store, "FC1 mb1").total, 1);
  EXPECT_EQ(search(store, "communication").total, 1);
  EXPECT_EQ(search(store, "layer1 tp").total, 1);
  EXPECT_EQ(search(store, "L2").total, 0);
  EXPECT_EQ(search(store, ">39ps").total, 3);
  EXPECT_EQ(search(store, ">40ps").total, 0);
  EXPECT_EQ(search(store, "fc1", 1).slices.size(), 1u);
  EXPECT_EQ(search(store, "rank1").total, 0);
}

// In B the all-reduce takes twice as long and one gemm is gone.
TEST(Compare, RanksWhatExplainsTheDifference) {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"rank 0 elsewhere", "", 0, 0});
  const std::uint32_t a = builder.thread(p, "compute", 0), b = builder.thread(p, "tp", 1);
  const std::uint32_t gemm = builder.definition(framed("F/mb", "/L1/fc1", SliceKind::Gemm));
  const std::uint32_t sum = builder.definition(named("F/L1/tp_all_reduce", SliceKind::TpComm, 1));
  builder.slice(a, 0, 40, gemm, 0);
  builder.slice(b, 30, 120, sum);
  const Comparison c = compare(small(), builder.finish("b"), GroupBy::Name);
  ASSERT_EQ(c.rows.size(), 2u);
  EXPECT_EQ(c.rows[0].key, "F/L1/tp_all_reduce");
  EXPECT_DOUBLE_EQ(c.rows[0].time_b - c.rows[0].time_a, 80e-12);
  EXPECT_EQ(c.matched, 2);
  EXPECT_EQ(c.only_a, 1);
  EXPECT_EQ(c.only_b, 0);
  EXPECT_EQ(c.errors[static_cast<std::size_t>(SliceKind::TpComm)][Comparison::kBins - 1], 1);
  EXPECT_EQ(c.errors[static_cast<std::size_t>(SliceKind::Gemm)][10], 1);  // -2.5 % .. 2.5 %
}

// Rank 0 computes [0,50) and joins the all-reduce [50,90); rank 1 computes [0,80) and joins at 80.
// What decides is rank 1's computation, then the all-reduce from 80 on, then a wait of 5 and the
// last gemm.
TEST(CriticalPath, FollowsThePeerThatCameLast) {
  StoreBuilder builder;
  std::uint32_t compute[2], net[2];
  for (int r = 0; r < 2; ++r) {
    const std::uint32_t p = builder.process({"rank " + std::to_string(r), "", r, 0});
    compute[r] = builder.thread(p, "compute", 0);
    net[r] = builder.thread(p, "tp", 1);
  }
  const std::uint32_t d = builder.definition(named("f", SliceKind::Gemm));
  builder.slice(compute[0], 0, 50, d);
  builder.slice(net[0], 50, 40, d);
  builder.slice(compute[1], 0, 80, d);
  builder.slice(net[1], 80, 10, d);
  builder.slice(compute[0], 95, 5, d);
  builder.flow(net[1], 80, net[0], 80);
  const Store store = builder.finish("t");
  const auto path = critical_path(store, store.range());
  ASSERT_EQ(path.size(), 4u);
  EXPECT_EQ(store.tracks[store.track_of(path[0].slice)].process, 1u);
  EXPECT_EQ(path[0].end, 80);
  EXPECT_EQ(path[1].end, 90);
  EXPECT_EQ(path[2].slice, kNoSlice);
  EXPECT_EQ(path[2].end - path[2].begin, 5);
  EXPECT_EQ(path[3].end, 100);
}

// Slices without duration at one time on two streams must not lead in circles.
TEST(CriticalPath, EndsOnSlicesWithoutDuration) {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"p", "", -1, -1});
  const std::uint32_t a = builder.thread(p, "a", 0), b = builder.thread(p, "b", 1);
  const std::uint32_t d = builder.definition(named("f", SliceKind::Gemm));
  for (int i = 0; i < 3; ++i) {
    builder.slice(a, 5, 0, d);
    builder.slice(b, 5, 0, d);
  }
  builder.slice(a, 5, 3, d);
  const Store store = builder.finish("t");
  EXPECT_EQ(critical_path(store, store.range()).size(), 1u);
}

}  // namespace
}  // namespace gputwin
