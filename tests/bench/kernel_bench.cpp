// What one kernel prediction costs: shapes change with every call, so that nothing is remembered.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <vector>

#include "hwmodels/hardware_model.h"
#include "tests/unit/hwmodels/world.h"

namespace gputwin::test {
namespace {

struct World {
  World()
      : topology(nvswitch_cluster("h100-sxm-80gb", 1, 450, 50)),
        model(topology, Job{}, data_folder()) {}
  Topology topology;
  HardwareModel model;
};

constexpr std::size_t kShapes = 1024;

// Extents between 1 and 16,384, the same in every run.
std::vector<Op> shapes(OpKind kind) {
  std::vector<Op> ops(kShapes);
  std::uint64_t state = 1;
  const auto extent = [&state](int bits) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>(1 + (state >> 33) % (1u << bits));
  };
  for (Op& op : ops) {
    op.kind = kind;
    op.dtype = op.out = DType::Bf16;
    switch (kind) {
      case OpKind::Gemm: op.dims = {extent(14), extent(14), extent(14)}; break;
      case OpKind::FlashForward:
        op.causal = true;
        op.attention = AttentionKernel::Flash2;
        op.dims = {extent(3), 32, 8, extent(13), 0, 128};
        op.dims[4] = op.dims[3];
        break;
      default: op.dims = {extent(14), extent(14)}; break;
    }
  }
  return ops;
}

void predict(benchmark::State& state, OpKind kind) {
  const World world;
  const std::vector<Op> ops = shapes(kind);
  std::size_t i = 0;
  double sum = 0;
  for (auto _ : state) {
    const Op& op = ops[i++ % kShapes];
    sum += world.model.kernel(op, Bytes(1 << 20), Bytes(1 << 20), DeviceKindId(0)).time.value;
  }
  if (!(sum > 0)) state.SkipWithError("a kernel takes time");
  benchmark::DoNotOptimize(sum);
}

BENCHMARK_CAPTURE(predict, gemm, OpKind::Gemm);
BENCHMARK_CAPTURE(predict, flash_attention, OpKind::FlashForward);
BENCHMARK_CAPTURE(predict, norm, OpKind::NormForward);

}  // namespace
}  // namespace gputwin::test

BENCHMARK_MAIN();
