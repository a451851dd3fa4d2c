#include "validation/executors/host/host_kernels.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "validation/codecs/cpu_codec.h"
#include "validation/executors/host/host_floats.h"
#include "validation/executors/host/host_loops.h"
#include "validation/executors/host/host_pointwise.h"

namespace gputwin::executors {

namespace {

int as_int(std::int64_t n) { return static_cast<int>(n); }

void gemm(const Op& op, const HostTask& task) {
  const std::int64_t m = op.dims[0], n = op.dims[1], k = op.dims[2];
  const Floats a(task.reads.at(0), true), b(task.reads.at(1), true);
  const Floats c(task.writes.at(0), op.accumulate);
  need(a.size() == m * k && b.size() == k * n && c.size() == m * n,
       "operands of a matrix product do not fit its dims");
  cblas_sgemm(CblasRowMajor, op.trans_a ? CblasTrans : CblasNoTrans,
              op.trans_b ? CblasTrans : CblasNoTrans, as_int(m), as_int(n), as_int(k), 1.0f,
              a.data(), as_int(op.trans_a ? m : k), b.data(), as_int(op.trans_b ? k : n),
              op.accumulate ? 1.0f : 0.0f, c.data(), as_int(n));
  if (task.reads.size() > 2) {
    const Floats bias(task.reads[2], true);
    need(bias.size() == n, "a bias has as many elements as the product has columns");
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) c.data()[i * n + j] += bias.data()[j];
    }
  }
  c.store_back();
}

/// One product for each sample and query head; query heads of a group share a key head.
void attention_gemm(const Op& op, const HostTask& task) {
  const auto [b, a, g, s, u, d] = op.dims;
  const bool to_scores =
      op.kind == OpKind::AttentionScores || op.kind == OpKind::AttentionGradProbs;
  const bool to_queries =
      op.kind == OpKind::AttentionContext || op.kind == OpKind::AttentionGradQuery;
  const bool scaled = op.kind == OpKind::AttentionScores || op.kind == OpKind::AttentionGradQuery ||
                      op.kind == OpKind::AttentionGradKey;
  const float factor = scaled ? 1.0f / std::sqrt(static_cast<float>(d)) : 1.0f;
  const Floats x(task.reads.at(0), true), y(task.reads.at(1), true), z(task.writes.at(0), false);
  const std::int64_t queries = b * s * a * d, keys = b * u * g * d, scores = b * a * s * u;
  need(x.size() == (to_scores ? queries : scores) &&
           y.size() == (to_scores || to_queries ? keys : queries) &&
           z.size() == (to_scores    ? scores
                        : to_queries ? queries
                                     : keys),
       "operands of attention do not fit its dims");
  const int row_q = as_int(a * d), row_k = as_int(g * d), row_s = as_int(u);
  for (std::int64_t n = 0; n < b; ++n) {
    for (std::int64_t h = 0; h < a; ++h) {
      const std::int64_t q = (n * s * a + h) * d, k = (n * u * g + h / (a / g)) * d;
      const std::int64_t p = (n * a + h) * s * u;
      if (to_scores) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_int(s), as_int(u), as_int(d),
                    factor, x.data() + q, row_q, y.data() + k, row_k, 0.0f, z.data() + p, row_s);
      } else if (to_queries) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_int(s), as_int(d), as_int(u),
                    factor, x.data() + p, row_s, y.data() + k, row_k, 0.0f, z.data() + q, row_q);
      } else {
        const float beta = h % (a / g) == 0 ? 0.0f : 1.0f;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, as_int(u), as_int(d), as_int(s),
                    factor, x.data() + p, row_s, y.data() + q, row_q, beta, z.data() + k, row_k);
      }
    }
  }
  z.store_back();
}

/// Whether the kernels here do all that a fused attention asks for.
bool plain_flash(const Op& op) {
  const bool flash = op.kind == OpKind::FlashForward || op.kind == OpKind::FlashBackward;
  return flash && !op.alibi && !op.cp_slot.valid() && op.window == 0 && op.value_size == 0 &&
         op.dropout == 0.0f;
}

/// Sizes of fused attention and where heads lie.
struct Heads {
  explicit Heads(const Op& op)
      : b(op.dims[0]), a(op.dims[1]), g(op.dims[2]), s(op.dims[3]), u(op.dims[4]), d(op.dims[5]) {
    need(g > 0 && a % g == 0, "query heads are not a multiple of key heads");
  }
  std::int64_t b, a, g, s, u, d;
  std::int64_t queries() const { return b * s * a * d; }
  std::int64_t keys() const { return b * u * g * d; }
  std::int64_t query(std::int64_t n, std::int64_t h) const { return (n * s * a + h) * d; }
  std::int64_t key(std::int64_t n, std::int64_t h) const { return (n * u * g + h / (a / g)) * d; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

/// c [m, n] = factor op(a) [m, k] op(b) [k, n] + beta c, rows at the given pitches.
void product(bool turn_a, bool turn_b, std::int64_t m, std::int64_t n, std::int64_t k, float factor,
             const float* a, std::int64_t pitch_a, const float* b, std::int64_t pitch_b, float beta,
             float* c, std::int64_t pitch_c) {
  cblas_sgemm(CblasRowMajor, turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans,
              as_int(m), as_int(n), as_int(k), factor, a, as_int(pitch_a), b, as_int(pitch_b), beta,
              c, as_int(pitch_c));
}

void flash_forward(const Op& op, const HostTask& task) {
  const Heads z(op);
  const Floats q(task.reads.at(0), true), k(task.reads.at(1), true), v(task.reads.at(2), true);
  const Floats out(task.writes.at(0), false), log_sums(task.writes.at(1), false);
  need(q.size() == z.queries() && k.size() == z.keys() && v.size() == z.keys() &&
           out.size() == z.queries() && log_sums.size() == z.b * z.a * z.s,
       "operands of attention do not fit its dims");
  const std::int64_t row_q = z.a * z.d, row_k = z.g * z.d;
  std::vector<float> scores(static_cast<std::size_t>(z.s * z.u));
  for (std::int64_t n = 0; n < z.b; ++n) {
    for (std::int64_t h = 0; h < z.a; ++h) {
      const std::int64_t at = z.query(n, h), from = z.key(n, h);
      product(false, true, z.s, z.u, z.d, z.scale(), q.data() + at, row_q, k.data() + from, row_k,
              0.0f, scores.data(), z.u);
      softmax_rows(scores.data(), z.s, z.s, z.u, op.causal, scores.data(),
                   log_sums.data() + (n * z.a + h) * z.s);
      product(false, false, z.s, z.d, z.u, 1.0f, scores.data(), z.u, v.data() + from, row_k, 0.0f,
              out.data() + at, row_q);
    }
  }
  out.store_back();
  log_sums.store_back();
}

void flash_backward(const Op& op, const HostTask& task) {
  const Heads z(op);
  const Floats q(task.reads.at(0), true), k(task.reads.at(1), true), v(task.reads.at(2), true);
  const Floats out(task.reads.at(3), true), log_sums(task.reads.at(4), true);
  const Floats d_out(task.reads.at(5), true);
  const Floats dq(task.writes.at(0), false), dk(task.writes.at(1), false);
  const Floats dv(task.writes.at(2), false);
  need(q.size() == z.queries() && k.size() == z.keys() && v.size() == z.keys() &&
           out.size() == z.queries() && d_out.size() == z.queries() && dq.size() == z.queries() &&
           dk.size() == z.keys() && dv.size() == z.keys() && log_sums.size() == z.b * z.a * z.s,
       "operands of attention do not fit its dims");
  const std::int64_t row_q = z.a * z.d, row_k = z.g * z.d;
  std::vector<float> probs(static_cast<std::size_t>(z.s * z.u)), grad(probs.size());
  for (std::int64_t n = 0; n < z.b; ++n) {
    for (std::int64_t h = 0; h < z.a; ++h) {
      const std::int64_t at = z.query(n, h), from = z.key(n, h);
      const float beta = h % (z.a / z.g) == 0 ? 0.0f : 1.0f;
      product(false, true, z.s, z.u, z.d, z.scale(), q.data() + at, row_q, k.data() + from, row_k,
              0.0f, probs.data(), z.u);
      product(false, true, z.s, z.u, z.d, 1.0f, d_out.data() + at, row_q, v.data() + from, row_k,
              0.0f, grad.data(), z.u);
      flash_backward_rows(log_sums.data() + (n * z.a + h) * z.s, out.data() + at, d_out.data() + at,
                          z.s, z.u, z.d, row_q, op.causal, probs.data(), grad.data());
      product(true, false, z.u, z.d, z.s, 1.0f, probs.data(), z.u, d_out.data() + at, row_q, beta,
              dv.data() + from, row_k);
      product(false, false, z.s, z.d, z.u, z.scale(), grad.data(), z.u, k.data() + from, row_k,
              0.0f, dq.data() + at, row_q);
      product(true, false, z.u, z.d, z.s, z.scale(), grad.data(), z.u, q.data() + at, row_q, beta,
              dk.data() + from, row_k);
    }
  }
  dq.store_back();
  dk.store_back();
  dv.store_back();
}

std::span<std::uint8_t> payload_of(const HostOperand& operand, std::int64_t bytes) {
  need(operand.view.dtype == DType::U8 && operand.view.elements() == bytes,
       "a payload has the bytes that its codec makes");
  return {bytes_of_operand(operand), static_cast<std::size_t>(bytes)};
}

void encode(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const Codec codec = codec_of(op);
  const Floats x(task.reads.at(0), true);
  need(x.size() == t * h, "operands of a codec do not fit its dims");
  const auto payload = payload_of(task.writes.at(0), payload_bytes(codec, t, h).value);
  if (task.reads.size() > 1) {
    std::vector<float> residual = load<float>(task.reads[1]);
    codecs::encode_with_feedback(codec, x.data(), t, h, residual, payload);
    return store(task.writes.at(1), residual);
  }
  codecs::encode(codec, {x.data(), codecs::Element::Fp32, t, h}, payload);
}

/// The sum of all payloads.
void decode(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], h = op.dims[1], parts = op.dims[5];
  const Codec codec = codec_of(op);
  const std::int64_t bytes = payload_bytes(codec, t, h).value;
  const auto payloads = payload_of(task.reads.at(0), parts * bytes);
  const Floats y(task.writes.at(0), false);
  need(y.size() == t * h, "operands of a codec do not fit its dims");
  std::fill(y.data(), y.data() + t * h, 0.0f);
  for (std::int64_t p = 0; p < parts; ++p) {
    codecs::accumulate(codec, payloads.subspan(static_cast<std::size_t>(p * bytes), bytes),
                       codecs::Element::Fp32, t, h, y.data());
  }
  y.store_back();
}

/// Adam with bias correction and clipping, as the interpreter defines it, in F32.
void adam_step(const Op& op, const HostTask& task, int step, const InterpretOptions& options) {
  const std::int64_t n = op.dims[0];
  const bool has_master = task.writes.size() > 3;
  const Floats grad(task.reads.at(0), true);
  const Floats first(task.writes.at(has_master ? 1 : 0), true);
  const Floats second(task.writes.at(has_master ? 2 : 1), true);
  const Floats master(task.writes.at(has_master ? 0 : 2), true);
  need(grad.size() == n && first.size() == n && second.size() == n && master.size() == n,
       "operands of Adam do not fit its dims");
  const double norm = task.reads.size() > 1 ? std::sqrt(load<double>(task.reads[1]).at(0)) : 0.0;
  const auto clip = static_cast<float>(norm > options.clip_norm ? options.clip_norm / norm : 1.0);
  const auto correction = [step](double beta) {
    return static_cast<float>(1.0 / (1.0 - std::pow(beta, step)));
  };
  const AdamConstants constants{clip, static_cast<float>(options.learning_rate),
                                static_cast<float>(options.adam_epsilon), correction(0.9),
                                correction(0.95)};
  adam(constants, grad.data(), n, first.data(), second.data(), master.data());
  first.store_back();
  second.store_back();
  master.store_back();
  if (has_master) store(task.writes[3], std::vector<float>(master.data(), master.data() + n));
}

/// A copy as it is. False: the op does more than that.
bool plain_copy(const Op& op, const HostTask& task) {
  const bool copies = op.kind == OpKind::CopyBytes || op.kind == OpKind::DropoutBackward ||
                      (op.kind == OpKind::CastCopy && !op.slot.valid() && op.scale == 1.0f);
  if (!copies || task.reads.size() != 1 || task.writes.size() != 1) return false;
  const float* from = floats_of(task.reads[0]);
  float* to = floats_of(task.writes[0]);
  const std::int64_t n = task.reads[0].view.elements();
  if (from == nullptr || to == nullptr || task.writes[0].view.elements() != n) return false;
  std::memmove(to, from, static_cast<std::size_t>(n) * sizeof(float));
  return true;
}

/// Zeros and sums of two, in place. False: formats or gaps ask for the general way.
bool plain_elementwise(const Op& op, const HostTask& task) {
  float* to = floats_of(task.writes.at(0));
  const std::int64_t n = task.writes[0].view.elements();
  if (to == nullptr) return false;
  if (op.kind == OpKind::Zero) {
    std::fill(to, to + n, 0.0f);
    return true;
  }
  if (op.kind != OpKind::Add || task.reads.size() != 2) return false;
  const float *x = floats_of(task.reads[0]), *y = floats_of(task.reads[1]);
  if (x == nullptr || y == nullptr || task.reads[0].view.elements() != n) return false;
  if (task.reads[1].view.elements() != n) return false;
  add(x, y, n, to);
  return true;
}

/// A view without gaps.
bool one_range(const View& view) { return view.rows <= 1 || view.ld == view.cols; }

/// Elements whose square another rank adds to the norm are left out.
void squares(const interpreted::RankState& rank, const Op& op, const HostTask& task) {
  const HostOperand& operand = task.reads.at(0);
  const Floats x(operand, true), sum(task.writes.at(0), op.accumulate);
  need(x.size() == op.dims[0] && sum.size() == 1, "operands of a sum do not fit its dims");
  const double before = op.accumulate ? static_cast<double>(*sum.data()) : 0.0;
  const std::int64_t size = interpreted::element_bytes(operand.view.dtype);
  const std::int64_t first = operand.view.offset * size;
  double all = before;
  std::int64_t next = 0;  // element after the last one that was left out
  const auto& elsewhere = rank.counted_elsewhere;
  for (auto at = elsewhere.lower_bound({operand.view.buffer, first});
       at != elsewhere.end() && at->buffer == operand.view.buffer; ++at) {
    const std::int64_t element = (at->byte - first) / size;
    if (element >= x.size()) break;
    if (element > next) all += sum_of_squares(x.data() + next, element - next);
    next = element + 1;
  }
  all += sum_of_squares(x.data() + next, x.size() - next);
  *sum.data() = static_cast<float>(all);
  sum.store_back();
}

/// Elements whose square another rank adds to the norm count as 0 here.
void drop_counted_elsewhere(const interpreted::RankState& rank, const View& view,
                            std::vector<double>& values) {
  if (rank.counted_elsewhere.empty()) return;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const std::int64_t index = interpreted::element_index(view, static_cast<std::int64_t>(k));
    const std::int64_t byte = index * interpreted::element_bytes(view.dtype);
    if (rank.counted_elsewhere.contains({view.buffer, byte})) values[k] = 0.0;
  }
}

void by_definition(const interpreted::World& world, const interpreted::RankState& rank,
                   const Op& op, const HostTask& task) {
  constexpr double kSingle = 1e-3;  // log-sum-exps were rounded to the format they are kept in
  interpreted::Work work = interpreted::work_of(world, rank, op, task.body);
  work.log_sum_tolerance = kSingle;
  for (const HostOperand& read : task.reads) work.reads.push_back(load<double>(read));
  for (std::size_t k = 0; k < task.writes.size(); ++k) {
    const HostOperand& write = task.writes[k];
    const auto elements = static_cast<std::size_t>(write.view.elements());
    const bool read = interpreted::reads_output(op, k, task.writes.size());
    work.writes.push_back(read ? load<double>(write) : std::vector<double>(elements));
  }
  if (op.kind == OpKind::SumOfSquares) {
    drop_counted_elsewhere(rank, task.reads.at(0).view, work.reads[0]);
  }
  interpreted::compute(work);
  for (std::size_t k = 0; k < task.writes.size(); ++k) store(task.writes[k], work.writes[k]);
}

}  // namespace

Codec codec_of(const Op& op) {
  Codec codec;
  codec.kind = static_cast<CodecKind>(op.dims[4]);
  codec.keep = static_cast<double>(op.dims[2]) / static_cast<double>(op.dims[1]);
  codec.bits = static_cast<std::int32_t>(op.dims[3]);
  const std::string unfit = codecs::unfit(codec, op.dims[1]);
  need(unfit.empty(), "a codec that cannot code its rows: " + unfit);
  return codec;
}

void run_kernel(const interpreted::World& world, const interpreted::RankState& rank,
                const HostTask& task) {
  const Op& op = world.plan.call(*task.instruction).op;
  if (op.kind == OpKind::Gemm) return gemm(op, task);
  if (is_attention_gemm(op.kind) && !op.alibi) return attention_gemm(op, task);
  if (op.kind == OpKind::AdamStep || op.kind == OpKind::CpuAdam) {
    return adam_step(op, task, task.body + 1, world.options);
  }
  if (plain_flash(op)) {
    return op.kind == OpKind::FlashForward ? flash_forward(op, task) : flash_backward(op, task);
  }
  if (op.kind == OpKind::Encode) return encode(op, task);
  if (op.kind == OpKind::Decode) return decode(op, task);
  if (plain_copy(op, task)) return;
  if (run_pointwise(op, task, world.member(rank, op.slot))) return;
  if (op.kind == OpKind::SumOfSquares && one_range(task.reads.at(0).view)) {
    return squares(rank, op, task);
  }
  const bool elementwise = op.kind == OpKind::Zero || op.kind == OpKind::Add;
  if (elementwise && plain_elementwise(op, task)) return;
  by_definition(world, rank, op, task);
}

void run_collective(const Plan& plan, const std::vector<const HostTask*>& members) {
  const Op& op = plan.call(*members[0]->instruction).op;
  for (const HostTask* member : members) {
    const Op& other = plan.call(*member->instruction).op;
    need(other.kind == op.kind && other.dims == op.dims && other.reduce_max == op.reduce_max,
         "members run different collectives: " + plan.full_name(*members[0]->instruction) +
             " and " + plan.full_name(*member->instruction));
  }
  if (op.kind == OpKind::AllReduce && !op.reduce_max) {
    std::vector<float> total = load<float>(members[0]->reads.at(0));
    for (std::size_t m = 1; m < members.size(); ++m) {
      const Floats part(members[m]->reads.at(0), true);
      need(part.size() == static_cast<std::int64_t>(total.size()),
           "members of a reduction bring different sizes");
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += part.data()[k];
    }
    for (const HostTask* member : members) store(member->writes.at(0), total);
    return;
  }
  std::vector<std::vector<double>> reads;
  std::vector<std::int64_t> elements;
  for (const HostTask* member : members) {
    reads.push_back(load<double>(member->reads.at(0)));
    elements.push_back(member->writes.at(0).view.elements());
  }
  const auto writes = interpreted::collect(op, reads, elements);
  for (std::size_t m = 0; m < members.size(); ++m) store(members[m]->writes[0], writes[m]);
}

void move_values(const HostOperand& from, const HostOperand& to) {
  need(from.view.elements() == to.view.elements(), "both ends of a message have one size");
  store(to, load<double>(from));
}

void use_one_blas_thread() { openblas_set_num_threads(1); }

}  // namespace gputwin::executors
