#include "validation/executors/host/host_kernels.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace gputwin::executors {

namespace {

/// An operand as F32 without gaps: in place if it lies so, else a copy that store() writes back.
class Floats {
 public:
  Floats(const HostOperand& operand, bool read) : operand_(operand), data_(floats_of(operand)) {
    if (data_ != nullptr) return;
    copy_ = read ? load<float>(operand)
                 : std::vector<float>(static_cast<std::size_t>(operand.view.elements()));
    data_ = copy_.data();
  }
  float* data() const { return data_; }
  std::int64_t size() const { return operand_.view.elements(); }
  void store_back() const {
    if (!copy_.empty()) store(operand_, copy_);
  }

 private:
  const HostOperand& operand_;
  std::vector<float> copy_;
  float* data_;
};

void need(bool condition, const std::string& what) {
  if (!condition) throw Fault(what);
}

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

/// Adam with bias correction and clipping, as the interpreter defines it, in F32.
void adam(const Op& op, const HostTask& task, int step, const InterpretOptions& options) {
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
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f;
  const auto scale1 = static_cast<float>(1.0 / (1.0 - std::pow(0.9, step)));
  const auto scale2 = static_cast<float>(1.0 / (1.0 - std::pow(0.95, step)));
  const auto rate = static_cast<float>(options.learning_rate);
  const auto epsilon = static_cast<float>(options.adam_epsilon);
  for (std::int64_t k = 0; k < n; ++k) {
    const float g = grad.data()[k] * clip;
    float &m = first.data()[k], &v = second.data()[k];
    m = kBeta1 * m + (1.0f - kBeta1) * g;
    v = kBeta2 * v + (1.0f - kBeta2) * g * g;
    master.data()[k] -= rate * (m * scale1) / (std::sqrt(v * scale2) + epsilon);
  }
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
  for (std::int64_t k = 0; k < n; ++k) to[k] = x[k] + y[k];
  return true;
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
  interpreted::Work work{.op = op,
                         .reads = {},
                         .writes = {},
                         .member = world.member(rank, op.slot),
                         .members = world.members(rank, op.slot),
                         .step = task.body + 1,
                         .options = world.options,
                         .cp_member = world.member(rank, op.cp_slot),
                         .cp_members = world.members(rank, op.cp_slot),
                         .log_sum_tolerance = kSingle};
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

void run_kernel(const interpreted::World& world, const interpreted::RankState& rank,
                const HostTask& task) {
  const Op& op = world.plan.call(*task.instruction).op;
  if (op.kind == OpKind::Gemm) return gemm(op, task);
  if (is_attention_gemm(op.kind) && !op.alibi) return attention_gemm(op, task);
  if (op.kind == OpKind::AdamStep || op.kind == OpKind::CpuAdam) {
    return adam(op, task, task.body + 1, world.options);
  }
  if (plain_copy(op, task)) return;
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

void use_one_blas_thread() { openblas_set_num_threads(1); }

}  // namespace gputwin::executors
