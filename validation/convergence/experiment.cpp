#include "validation/convergence/experiment.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <thread>

#include "sim/core/check.h"
#include "validation/convergence/coded_sum.h"
#include "validation/convergence/grammar_text.h"

namespace gputwin::convergence {
namespace {

constexpr std::uint64_t kTextSeed = 20261202;

struct Batch {
  std::vector<std::int32_t> tokens, targets;
};

class Text {
 public:
  explicit Text(std::size_t bytes) : all_(tokens_of(grammar_text(bytes, kTextSeed))) {}

  // Sequences at random places of the first 95 %, or else of the rest.
  Batch draw(std::mt19937_64& bits, std::int64_t sequences, std::int64_t length,
             bool held_out) const {
    const std::size_t border = all_.size() / 20 * 19;
    const std::size_t first = held_out ? border : 0;
    const std::size_t room = (held_out ? all_.size() - border : border) - length - 1;
    Batch b;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const auto at = all_.begin() + static_cast<std::ptrdiff_t>(first + (bits() >> 16) % room);
      b.tokens.insert(b.tokens.end(), at, at + length);
      b.targets.insert(b.targets.end(), at + 1, at + length + 1);
    }
    return b;
  }

 private:
  std::vector<std::int32_t> all_;
};

double rate_at(const Experiment& e, std::int64_t step) {
  const double warm = std::min(1.0, static_cast<double>(step) / 20);
  const double done = static_cast<double>(step) / static_cast<double>(e.steps);
  return e.rate * warm * (0.55 + 0.45 * std::cos(std::numbers::pi * done));
}

// What one rank does; rank 0 notes the losses, which are the same on all.
void train_rank(const Experiment& e, const Text& text, std::int32_t rank, std::int32_t seed,
                const Codec& codec, CodedSum& sums, Curve& curve) {
  nn::Gpt gpt(e.shape, rank, e.ranks, static_cast<std::uint64_t>(seed));
  std::mt19937_64 bits(static_cast<std::uint64_t>(seed) + 1000);
  const nn::Exchange exchange = [&](auto... arguments) { sums.sum(rank, arguments...); };
  for (std::int64_t step = 1; step <= e.steps; ++step) {
    if (step == e.plain_steps + 1) {
      sums.wait();
      if (rank == 0) sums.use(codec);
      sums.wait();
    }
    const Batch b = text.draw(bits, e.sequences, e.shape.length, false);
    const double loss = gpt.step(b.tokens, b.targets, exchange, true);
    gpt.adam(rate_at(e, step), step);
    if (rank == 0) curve.losses.push_back(loss);
  }
  double held_out = 0;
  for (std::int64_t i = 0; i < e.held_out; ++i) {
    const Batch b = text.draw(bits, e.sequences, e.shape.length, true);
    held_out += gpt.step(b.tokens, b.targets, exchange, false) / static_cast<double>(e.held_out);
  }
  if (rank == 0) curve.held_out = held_out;
}

Curve train(const Experiment& e, const Text& text, const NamedCodec& named, std::int32_t seed) {
  Curve curve{named.name, seed, {}, 0, 0, 0};
  CodedSum sums(e.ranks, Codec{});
  std::vector<std::thread> ranks;
  for (std::int32_t r = 0; r < e.ranks; ++r) {
    ranks.emplace_back([&, r] { train_rank(e, text, r, seed, named.codec, sums, curve); });
  }
  for (std::thread& t : ranks) t.join();
  const std::int64_t rows = e.sequences * e.shape.length;
  curve.share = static_cast<double>(payload_bytes(named.codec, rows, e.shape.hidden).value) /
                static_cast<double>(payload_bytes(Codec{}, rows, e.shape.hidden).value);
  curve.error = sums.mean_error();
  return curve;
}

}  // namespace

std::vector<NamedCodec> compared_codecs() {
  return {{"none", {}},
          {"int8", {CodecKind::Block, 1, 8, 0}},
          {"int4", {CodecKind::Block, 1, 4, 0}},
          {"pwq4", {CodecKind::Pwq, 1, 4, 0}},
          {"topk 0.3", {CodecKind::Topk, 0.3, 16, 0}},
          {"topk 0.3 x pwq8", {CodecKind::TopkPwq, 0.3, 8, 0}},
          {"topk 0.1 x pwq8", {CodecKind::TopkPwq, 0.1, 8, 0}},
          {"low rank 16", {CodecKind::LowRank, 1, 16, 16}}};
}

Experiment short_experiment() {
  Experiment e;
  e.shape.hidden = 64;
  e.shape.layers = 2;
  e.shape.length = 32;
  e.steps = 120;
  e.plain_steps = 12;
  e.held_out = 4;
  e.seeds = 1;
  return e;
}

std::vector<Curve> run_experiment(const Experiment& e,
                                  const std::function<bool(const std::vector<Curve>&)>& go_on) {
  for (const NamedCodec& c : e.codecs) {
    const bool fits = c.codec.kind == CodecKind::LowRank
                          ? c.codec.rank > 0
                          : codecs::unfit(c.codec, e.shape.hidden).empty();
    GPUTWIN_CHECK(fits, c.name + " codes the model's tokens");
  }
  nn::use_one_blas_thread();
  const Text text(e.text_bytes);
  std::vector<Curve> curves;
  for (std::int32_t seed = 1; seed <= e.seeds; ++seed) {
    for (const NamedCodec& c : e.codecs) {
      if (!go_on(curves)) return curves;
      curves.push_back(train(e, text, c, seed));
    }
  }
  go_on(curves);
  return curves;
}

double final_loss(const Curve& curve) {
  const std::size_t n = std::max<std::size_t>(1, curve.losses.size() / 10);
  return std::accumulate(curve.losses.end() - static_cast<std::ptrdiff_t>(n), curve.losses.end(),
                         0.0) /
         static_cast<double>(n);
}

}  // namespace gputwin::convergence
