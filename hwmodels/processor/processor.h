// What a plan costs where the host executor runs it: ranks are threads of one computer, kernels
// those of the executor, links memory behind a governor that may slow them.
//
//   product    t = f (batch (t0 + flops / R + bytes(A, B) / P + bytes(C) / W))      f by flops
//   operator   t = rows t1 + curve(bytes read and written), constants of each kind of kernel; rows
//              count for softmax, whose exponentials and sums start anew for each
//   collective max(curve(bytes), ring bytes / link + oversleep), message and copy alike: who is
//              done before a slowed link would be sleeps until then, and a little longer
//
// R is what the matrix library sustains once operands are packed, P packs them, W writes results
// (twice where they are accumulated); f is the median of measured / formula by size: libraries take
// another path for small products. Curves are medians of measured times, straight in logarithms
// between their points; below the first the time stays, beyond the last the rate does.
//
// Threads that share a core share its time: with more working ranks than cores every time is
// longer by ranks / cores. Ranks on cores of their own still share caches and memory; `loaded` is
// how much longer kernels take while every rank's core works, against one alone. Kernels that wait
// for copies find other caches after their sleep; `among_copies` is how much longer they take.
// A stream that waits for another one is a thread that sleeps: joining what another stream computed
// and handing back its own result cost two wake-ups, which collectives, messages and copies pay.
// Kernels of a computer that others use too last longer at times, never shorter by as much: costs
// are medians, and `jitter_sigma` is that of the log-normal factor with the mean that was measured.
// Source  gputwin probes run on the computer in question; gputwin calibrate makes the curves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hwmodels/constants_file.h"
#include "sim/core/cluster.h"
#include "sim/core/cost.h"
#include "sim/core/op.h"

namespace gputwin {

/// Times by size: both lists rise together, points are positive.
struct SizeCurve {
  std::vector<double> size, value;

  /// The value at `at`: straight in logarithms between points, the first below them, in proportion
  /// to the size beyond the last.
  double at(double at) const;
};

/// Constants of one layout of matrix products; see above.
struct ProductModel {
  Seconds call{};
  FlopsPerSecond rate{};
  BytesPerSecond pack{}, result{};
  SizeCurve factor;  // by flops of one item; no points: 1
};

/// One matrix product, or `batch` equal ones, C (m x n) = A (m x k) B (k x n), as priced here.
struct ProductShape {
  double m = 0, n = 0, k = 0, batch = 1;
  double element_bytes = 4;
  bool accumulate = false;
};

/// Constants of a kind of kernel that is no product; see above.
struct OperatorModel {
  Seconds row{};
  SizeCurve curve;
};

struct Processor {
  std::int32_t cores = 1;
  std::map<std::string, ProductModel> products;    // "gemm_nt": A as it is, B transposed
  std::map<std::string, OperatorModel> operators;  // by operator_key
  std::map<std::string, SizeCurve> collectives;    // seconds by bytes; by kind, and "message"
  std::map<std::string, SizeCurve> copies;         // seconds by bytes; by kind of copy
  double loaded_products = 1.0, loaded_operators = 1.0;
  /// Kernels run between copies that their stream waits for: it slept, and the caches hold what
  /// was copied. How much longer they take; not CPU Adam, which is measured so.
  bool among_copies = false;
  double among_copies_products = 1.0, among_copies_operators = 1.0;
  double shared_core = 1.0;  // of kernels whose rank also runs a collective on the same core
  Seconds issue{};           // least time between two tasks of a stream
  Seconds wake{};            // until a stream that waited for another one runs again
  Seconds oversleep{};       // of a thread that sleeps until a slowed link would be over
  Seconds yardstick{};       // kernels of one job while all was measured; 0: not known
  double pace = 1.0;         // of kernels: how much longer they take now than when measured
  double jitter_sigma = 0;   // of kernel durations about their median (Plan::jitter)
  /// Of a stream that works for another: to begin, and to hand back.
  Seconds wake_ups() const { return wake * 2.0; }
  BytesPerSecond file_read{}, file_write{};  // stand in for the drive of a node that names none
};

/// Reads /processor of a device file. Throws InputError as ConstantsFile does.
Processor read_processor(ConstantsFile& file);

/// Name of the curve or constants of a kernel: its kind, and what else decides how it is computed.
std::string operator_key(const Op& op);
bool is_product(OpKind kind);
bool works_by_row(OpKind kind);
/// Rows of a softmax, b a s; of other kinds 0.
double operator_rows(const Op& op);
ProductShape host_product(const Op& op);

/// Seconds of a product without its factor by size.
double product_formula(const ProductModel& model, const ProductShape& shape);
/// FLOPs of one item of a batch.
double item_flops(const ProductShape& shape);

/// Cost of a kernel or host task. A kind without a curve is priced as a copy of its bytes and
/// marked as extrapolated.
Cost processor_kernel(const Processor& processor, const NodeType& node, const Op& op, Bytes read,
                      Bytes written);
/// Cost of a copy between the arenas of a rank, whose link is the node's PCIe or drive.
Cost processor_copy(const Processor& processor, const NodeType& node, CopyKind kind, Bytes bytes);
/// Flows of a collective or message among `members` ranks of one computer.
CollectiveSchedule processor_collective(const Processor& processor, const NodeType& node,
                                        OpKind kind, Bytes bytes, std::int32_t members);

}  // namespace gputwin
