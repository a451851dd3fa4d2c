// Measured curves of NCCL: time of a collective by size, number of nodes and ranks.
//
// A curve is cut where NCCL changes its algorithm or protocol. Inside a piece
//   t(S) = start + ramp x S / (S + half) + W(S) / bus
// start: launch and steps; ramp: what channels and pipelines cost until they are filled, half of it
// at size `half`; W: bytes that count as bus traffic (2 (n-1)/n S for all-reduce, (n-1)/n S for
// all-gather, reduce-scatter and all-to-all, else S). The pieces need not meet: NCCL's choice is
// not always the faster one, and measured curves jump there. Between the last size of a piece and
// the first of the next, times are interpolated on logarithms.
//
// Between measured counts of ranks (or nodes) times are interpolated on logarithms; beyond them the
// start-up grows by the power law of the two outermost curves (or as the square root), the bus
// bandwidth stays. Rests on tables of nccl-tests; hwmodels/calibrate/collectives_fit.h fits them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hwmodels/constants_file.h"
#include "sim/core/cost.h"
#include "sim/core/op.h"

namespace gputwin {

/// One piece of a curve, for sizes `from` to `upto`.
struct CurvePiece {
  Algorithm algorithm = Algorithm::Ring;
  Protocol protocol = Protocol::Simple;
  Bytes from{}, upto{};
  Seconds start{}, ramp{};
  Bytes half{};
  BytesPerSecond bus{};  // 0: the time does not grow with W
};

struct CollectiveCurve {
  OpKind kind = OpKind::AllReduce;
  std::int32_t nodes = 1, ranks = 2;
  std::vector<CurvePiece> pieces;  // by size, at least one
  Bytes first{}, last{};           // sizes that were measured
  double low = 1.0, high = 1.0;    // 80 % interval as factors on the time
};

struct CollectiveCurves {
  std::vector<CollectiveCurve> curves;
  std::vector<Constant> constants;
  bool has(OpKind kind, bool across_nodes) const;
};

/// What a curve says about one collective.
struct CurvePoint {
  Seconds latency{};   // start and ramp
  Seconds transfer{};  // W / bus
  Algorithm algorithm = Algorithm::Ring;
  Protocol protocol = Protocol::Simple;
  double low = 1.0, high = 1.0;
  bool extrapolated = false;  // outside the measured counts or a factor 2 outside the sizes
  Seconds time() const { return latency + transfer; }
};

/// W of nccl-tests: bytes counted as bus traffic when the larger of input and output has `bytes`.
double bus_bytes(OpKind kind, double bytes, double ranks);

/// Time of `kind` over `ranks` GPUs on `nodes` nodes; nothing if no curve has this kind across
/// (or inside) nodes, or more than twice as many ranks share a node as were measured. `scale`:
/// bandwidth of the links over that of the measured ones.
std::optional<CurvePoint> evaluate(const CollectiveCurves& curves, OpKind kind, std::int32_t nodes,
                                   std::int32_t ranks, double bytes, double scale = 1.0);

/// Reads a file of curves; one that does not exist has none. "like": "NAME" takes the curves of
/// NAME.json beside it as assumed. Throws InputError with file and JSON pointer.
CollectiveCurves load_collective_curves(const std::filesystem::path& path);

}  // namespace gputwin
