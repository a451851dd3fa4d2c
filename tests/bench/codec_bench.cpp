// Throughput of the codecs on one core, in bytes of 16-bit input. Checks that values come back.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>

#include "validation/codecs/cpu_codec.h"

namespace gputwin::codecs {
namespace {

constexpr std::int64_t kTokens = 128, kWidth = 4096;  // 1 MiB

const std::vector<std::uint16_t>& input() {
  static const std::vector<std::uint16_t> values = [] {
    std::mt19937 bits(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> v(kTokens * kWidth);
    for (std::uint16_t& x : v) x = to_bf16(normal(bits));
    return v;
  }();
  return values;
}

const Codec kCodecs[] = {{CodecKind::TopkPwq, 0.1, 8, 0}, {CodecKind::TopkPwq, 0.3, 8, 0},
                         {CodecKind::Topk, 0.1, 16, 0},   {CodecKind::Pwq, 1, 4, 0},
                         {CodecKind::Block, 1, 8, 0},     {CodecKind::Block, 1, 4, 0}};

const char* name_of(std::int64_t codec) {
  static const char* const names[] = {
      "topk 0.1 x pwq8", "topk 0.3 x pwq8", "topk 0.1", "pwq4", "int8", "int4"};
  return names[codec];
}

void bytes_of_input(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * kTokens * kWidth * 2);
  state.SetLabel(name_of(state.range(0)));
}

void BM_encode(benchmark::State& state) {
  const Codec& codec = kCodecs[state.range(0)];
  const auto path = static_cast<Path>(state.range(1));
  if (!has_path(path)) return state.SkipWithError("the processor lacks these instructions");
  std::vector<std::uint8_t> payload(payload_bytes(codec, kTokens, kWidth).value);
  for (auto _ : state) {
    encode(codec, {input().data(), Element::Bf16, kTokens, kWidth}, payload, path);
    benchmark::DoNotOptimize(payload.data());
    benchmark::ClobberMemory();
  }
  std::vector<float> x(kTokens * kWidth), out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = from_bf16(input()[i]);
  decode(codec, payload, Element::Bf16, kTokens, kWidth, out.data());
  const double error = relative_square_error(x, out);
  if (!(error < 0.6)) state.SkipWithError("the values did not come back");
  state.counters["error"] = error;
  bytes_of_input(state);
}

void BM_accumulate(benchmark::State& state) {
  const Codec& codec = kCodecs[state.range(0)];
  std::vector<std::uint8_t> payload(payload_bytes(codec, kTokens, kWidth).value);
  encode(codec, {input().data(), Element::Bf16, kTokens, kWidth}, payload);
  std::vector<float> sum(kTokens * kWidth);
  for (auto _ : state) {
    accumulate(codec, payload, Element::Bf16, kTokens, kWidth, sum.data());
    benchmark::DoNotOptimize(sum.data());
    benchmark::ClobberMemory();
  }
  bytes_of_input(state);
}

BENCHMARK(BM_encode)->ArgsProduct({{0, 1, 2, 3, 4, 5}, {0, 1, 2}});
BENCHMARK(BM_accumulate)->DenseRange(0, 5);

}  // namespace
}  // namespace gputwin::codecs

BENCHMARK_MAIN();
