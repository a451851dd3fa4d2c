#include "sim/core/layout.h"

#include <numeric>

#include "sim/core/workload.h"

namespace gputwin {
namespace {

TEST(Layout, CoordinatesAndRankAreInverse) {
  Layout layout;
  layout.tp = 2;
  layout.cp = 3;
  layout.dp = 4;
  layout.pp = 5;
  for (std::uint32_t r = 0; r < 120; ++r) {
    EXPECT_EQ(layout.rank(layout.coordinates(RankId(r))), RankId(r));
  }
  // tp fastest, then cp, dp, pp: rank 1 is tp 1, rank 2 is cp 1, rank 6 dp 1, rank 24 pp 1.
  EXPECT_EQ(layout.coordinates(RankId(1)), (Coordinates{1, 0, 0, 0}));
  EXPECT_EQ(layout.coordinates(RankId(2)), (Coordinates{0, 1, 0, 0}));
  EXPECT_EQ(layout.coordinates(RankId(6)), (Coordinates{0, 0, 1, 0}));
  EXPECT_EQ(layout.coordinates(RankId(24)), (Coordinates{0, 0, 0, 1}));
}

TEST(Layout, RankOrderChangesWhoIsNext) {
  Layout layout;
  layout.tp = 2;
  layout.pp = 2;
  layout.rank_order = {Dim::Pp, Dim::Tp, Dim::Cp, Dim::Dp};
  EXPECT_EQ(layout.coordinates(RankId(1)), (Coordinates{0, 0, 0, 1}));
}

TEST(Layout, SpreadsARemainderOverMiddleChunks) {
  Layout layout;
  layout.pp = 4;
  // 10 layers on 4 chunks: 2 each and 2 left, which go to chunks 1 and 2.
  EXPECT_EQ(layout.layers_per_chunk(10), (std::vector<std::int32_t>{2, 3, 3, 2}));
}

// GPT-3 175B (arXiv 2005.14165 Table 2.1 with vocabulary padded to 51,200):
// 96 x (12 h^2 + 13 h) + 51,200 h + 2,048 h + 2 h with h = 12,288.
TEST(Transformer, CountsGpt3Parameters) {
  Transformer gpt3;
  gpt3.layers = 96;
  gpt3.hidden = 12288;
  gpt3.heads = gpt3.kv_heads = 96;
  gpt3.head_dim = 128;
  gpt3.ffn = 49152;
  gpt3.vocab = 51200;
  gpt3.max_positions = 2048;
  const std::int64_t h = 12288;
  EXPECT_EQ(gpt3.parameters(), 96 * (12 * h * h + 13 * h) + 51200 * h + 2048 * h + 2 * h);
}

}  // namespace
}  // namespace gputwin
