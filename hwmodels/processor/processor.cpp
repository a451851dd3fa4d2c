#include "hwmodels/processor/processor.h"

#include <algorithm>
#include <cmath>

#include "hwmodels/kernels/memory_bound.h"
#include "sim/core/check.h"
#include "sim/core/codec.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"

namespace gputwin {

namespace {

// 80 % of the operations of three plans lay within these factors (validation/probes/README.md).
constexpr double kLow = 0.8, kHigh = 1.3;
constexpr const char* kPlainCopy = "add";

SizeCurve read_curve(ConstantsFile& file, const std::string& at, const char* size,
                     const char* value, double unit, double size_unit = 1.0) {
  SizeCurve curve;
  curve.size = file.numbers(at + "/" + size, Range::Positive);
  curve.value = file.numbers(at + "/" + value, Range::Positive);
  if (curve.size.empty() || curve.size.size() != curve.value.size() ||
      !std::is_sorted(curve.size.begin(), curve.size.end())) {
    throw InputError(at, "", "", "is no curve",
                     std::string("as many ") + value + " as rising " + size + ", at least one");
  }
  for (double& v : curve.value) v *= unit;
  for (double& s : curve.size) s *= size_unit;
  return curve;
}

ProductModel read_product(ConstantsFile& file, const std::string& at) {
  ProductModel p;
  p.call = Seconds(file.number(at + "/call_us", Range::NotNegative) * 1e-6);
  p.rate = FlopsPerSecond(file.number(at + "/rate_GFLOPS") * 1e9);
  p.pack = BytesPerSecond(file.number(at + "/pack_GBps") * 1e9);
  p.result = BytesPerSecond(file.number(at + "/result_GBps") * 1e9);
  if (file.has(at + "/factor")) {
    p.factor = read_curve(file, at + "/factor", "MFLOP", "share", 1.0, 1e6);
  }
  return p;
}

std::map<std::string, OperatorModel> read_operators(ConstantsFile& file, const std::string& at) {
  std::map<std::string, OperatorModel> operators;
  for (const std::string& name : file.keys(at)) {
    OperatorModel& model = operators[name];
    model.row = Seconds(file.number_or(at + "/" + name + "/row_ns", 0.0) * 1e-9);
    model.curve = read_curve(file, at + "/" + name, "bytes", "time_us", 1e-6);
  }
  return operators;
}

std::map<std::string, SizeCurve> read_curves(ConstantsFile& file, const std::string& at) {
  std::map<std::string, SizeCurve> curves;
  for (const std::string& name : file.keys(at)) {
    curves[name] = read_curve(file, at + "/" + name, "bytes", "time_us", 1e-6);
  }
  return curves;
}

template <class Model>
const Model* find(const std::map<std::string, Model>& models, const std::string& key) {
  const auto found = models.find(key);
  return found == models.end() ? nullptr : &found->second;
}

// A kind is computed alike under most of its flags: its first model stands in for another.
const OperatorModel* nearest(const std::map<std::string, OperatorModel>& models,
                             const std::string& key) {
  const std::string kind = key.substr(0, key.find('.'));
  const auto found = models.lower_bound(kind);
  const bool same = found != models.end() && found->first.substr(0, found->first.find('.')) == kind;
  return same ? &found->second : nullptr;
}

double ranks_per_core(const Processor& p, const NodeType& node) {
  return std::max(1.0, static_cast<double>(node.gpus) / p.cores);
}

// How much longer a kernel takes because all ranks of the node work, and copies between kernels.
double load(const Processor& p, const NodeType& node, double loaded, double among_copies) {
  return p.pace * (node.gpus > 1 ? loaded : 1.0) * (p.among_copies ? among_copies : 1.0) *
         ranks_per_core(p, node);
}

// What passes after the time of a slowed link: the rest of the work, or the end of a sleep.
Seconds late(const Processor& p, double work, double link) {
  return work > link ? Seconds(work - link) : p.oversleep;
}

Cost base_cost() {
  Cost cost;
  cost.low = kLow;
  cost.high = kHigh;
  return cost;
}

Cost product_cost(const Processor& p, const NodeType& node, const Op& op) {
  const ProductShape shape = host_product(op);
  Cost cost = base_cost();
  cost.model = "host product: batch x (t0 + flops / R + bytes / P + result / W) x f(flops)";
  cost.op_class = op.kind == OpKind::Gemm ? "gemm" : "attention";
  const auto found = p.products.find(operator_key(op));
  if (found == p.products.end()) {
    throw InputError("/processor/products", "", operator_key(op), "has no constants",
                     "measure it: gputwin probes run --only products, then gputwin calibrate");
  }
  const ProductModel& model = found->second;
  double factor = load(p, node, p.loaded_products, p.among_copies_products);
  if (!model.factor.size.empty()) factor *= model.factor.at(item_flops(shape));
  const Seconds call = p.issue + Seconds(shape.batch * model.call.value * factor);
  const Seconds compute(shape.batch * item_flops(shape) / model.rate.value * factor);
  cost.time = p.issue + Seconds(product_formula(model, shape) * factor);
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = call;
  cost.terms[static_cast<std::size_t>(Term::Compute)] = compute;
  cost.terms[static_cast<std::size_t>(Term::Memory)] = cost.time - call - compute;
  return cost;
}

std::string collective_key(OpKind kind) {
  const bool message = kind == OpKind::SendTo || kind == OpKind::RecvFrom;
  return message ? "message" : std::string(to_string(kind));
}

// Bytes that each member passes on in a ring; how the executor's governor counts.
double ring_bytes(OpKind kind, double bytes, double n) {
  if (kind == OpKind::SendTo || kind == OpKind::RecvFrom) return bytes;
  return (kind == OpKind::AllReduce ? 2.0 : 1.0) * (n - 1.0) / n * bytes;
}

}  // namespace

double SizeCurve::at(double at) const {
  GPUTWIN_CHECK(!size.empty(), "a curve has a point");
  if (at <= size.front()) return value.front();
  if (at >= size.back()) return value.back() * at / size.back();
  const auto above = std::upper_bound(size.begin(), size.end(), at) - size.begin();
  const auto i = static_cast<std::size_t>(above);
  const double share = std::log(at / size[i - 1]) / std::log(size[i] / size[i - 1]);
  return value[i - 1] * std::pow(value[i] / value[i - 1], share);
}

bool works_by_row(OpKind kind) {
  return kind == OpKind::SoftmaxForward || kind == OpKind::SoftmaxBackward;
}

double operator_rows(const Op& op) {
  return works_by_row(op.kind) ? static_cast<double>(op.dims[0] * op.dims[1] * op.dims[2]) : 0.0;
}

bool is_product(OpKind kind) { return kind == OpKind::Gemm || is_attention_gemm(kind); }

std::string operator_key(const Op& op) {
  const std::string kind(to_string(op.kind));
  if (op.kind == OpKind::Gemm) return op.trans_a ? "gemm_tn" : op.trans_b ? "gemm_nt" : "gemm_nn";
  switch (op.kind) {
    case OpKind::ActivationForward:
    case OpKind::ActivationBackward: return kind + "." + std::string(to_string(op.activation));
    case OpKind::NormForward:
    case OpKind::NormBackward: return kind + "." + std::string(to_string(op.norm));
    case OpKind::Encode:
    case OpKind::Decode: return kind + "." + std::to_string(op.dims[4]);
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward: return kind + (op.causal ? ".causal" : ".full");
    case OpKind::CastCopy:
      return kind + (op.dtype == op.out ? op.scale == 1.0f ? ".plain" : ".scaled" : ".cast");
    default: return kind;
  }
}

ProductShape host_product(const Op& op) {
  const auto d = [&](std::size_t i) { return static_cast<double>(op.dims[i]); };
  ProductShape shape{.element_bytes = bits(op.dtype) / 8.0, .accumulate = op.accumulate};
  if (op.kind == OpKind::Gemm) {
    shape.m = d(0), shape.n = d(1), shape.k = d(2);
    return shape;
  }
  shape.batch = d(0) * d(1);
  switch (op.kind) {
    case OpKind::AttentionScores:
    case OpKind::AttentionGradProbs: shape.m = d(3), shape.n = d(4), shape.k = d(5); break;
    case OpKind::AttentionContext:
    case OpKind::AttentionGradQuery: shape.m = d(3), shape.n = d(5), shape.k = d(4); break;
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradKey: shape.m = d(4), shape.n = d(5), shape.k = d(3); break;
    default: GPUTWIN_CHECK(false, "only matrix products have a product's shape");
  }
  return shape;
}

double item_flops(const ProductShape& s) { return 2.0 * s.m * s.n * s.k; }

double product_formula(const ProductModel& model, const ProductShape& s) {
  const double operands = s.element_bytes * s.k * (s.m + s.n);
  const double result = s.element_bytes * s.m * s.n * (s.accumulate ? 2.0 : 1.0);
  return s.batch * (model.call.value + item_flops(s) / model.rate.value +
                    operands / model.pack.value + result / model.result.value);
}

Processor read_processor(ConstantsFile& file) {
  Processor p;
  const std::string at = "/processor/";
  p.cores = static_cast<std::int32_t>(file.number(at + "cores"));
  for (const std::string& name : file.keys(at + "products")) {
    p.products[name] = read_product(file, at + "products/" + name);
  }
  p.operators = read_operators(file, at + "operators");
  p.collectives = read_curves(file, at + "collectives");
  p.copies = read_curves(file, at + "copies");
  p.loaded_products = file.number(at + "loaded/products");
  p.loaded_operators = file.number(at + "loaded/operators");
  p.among_copies_products = file.number_or(at + "among_copies/products", 1.0);
  p.among_copies_operators = file.number_or(at + "among_copies/operators", 1.0);
  p.shared_core = file.number(at + "shared_core/compute_slowdown");
  p.issue = Seconds(file.number(at + "issue_us", Range::NotNegative) * 1e-6);
  p.wake = Seconds(file.number(at + "wake_us", Range::NotNegative) * 1e-6);
  p.oversleep = Seconds(file.number_or(at + "oversleep_us", 0.0, Range::NotNegative) * 1e-6);
  p.yardstick = Seconds(file.number_or(at + "yardstick_us", 0.0, Range::NotNegative) * 1e-6);
  p.jitter_sigma = file.number_or(at + "jitter_sigma", 0.0);
  p.file_read = BytesPerSecond(file.number_or(at + "file/read_GBps", 0.0) * 1e9);
  p.file_write = BytesPerSecond(file.number_or(at + "file/write_GBps", 0.0) * 1e9);
  return p;
}

Cost processor_kernel(const Processor& p, const NodeType& node, const Op& op, Bytes read,
                      Bytes written) {
  if (is_product(op.kind)) return product_cost(p, node, op);
  const auto bytes = static_cast<double>(moved_bytes(op, read, written).value);
  const std::string key = operator_key(op);
  Cost cost = base_cost();
  const OperatorModel* model = find(p.operators, key);
  if (model == nullptr) model = nearest(p.operators, key);
  cost.extrapolated = model == nullptr;
  if (model == nullptr) model = find(p.operators, kPlainCopy);
  if (model == nullptr) {
    throw InputError("/processor/operators", "", key, "has no curve",
                     "measure it: gputwin probes run, then gputwin calibrate");
  }
  const Seconds alone = model->row * operator_rows(op) + Seconds(model->curve.at(bytes));
  const double among_copies = op.kind == OpKind::CpuAdam ? 1.0 : p.among_copies_operators;
  const Seconds work = alone * load(p, node, p.loaded_operators, among_copies);
  cost.time = p.issue + work;
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = p.issue;
  cost.terms[static_cast<std::size_t>(Term::Memory)] = work;
  cost.model = "host operator: rows x t1 + measured curve by bytes moved";
  cost.op_class = op.kind == OpKind::CpuAdam ? "host_optimizer" : "memory_bound";
  return cost;
}

Cost processor_copy(const Processor& p, const NodeType& node, CopyKind kind, Bytes bytes) {
  const auto size = static_cast<double>(bytes.value);
  const SizeCurve* curve = find(p.copies, std::string(to_string(kind)));
  if (curve == nullptr && !p.copies.empty()) curve = &p.copies.begin()->second;
  if (curve == nullptr) {
    throw InputError("/processor/copies", "", std::string(to_string(kind)), "has no curve",
                     "measure it: gputwin probes run --only copies, then gputwin calibrate");
  }
  const bool drive = kind == CopyKind::NvmeToHost || kind == CopyKind::HostToNvme;
  BytesPerSecond link = node.pcie.per_gpu * node.pcie.efficiency;
  if (drive) link = kind == CopyKind::NvmeToHost ? node.nvme_read : node.nvme_write;
  const double governed =
      kind == CopyKind::DeviceToDevice || link.value <= 0 ? 0.0 : size / link.value;
  const double work = curve->at(size) * load(p, node, p.loaded_operators, 1.0);
  Cost cost = base_cost();
  const Seconds start_up = p.wake_ups() + Seconds(std::min(curve->value.front(), work));
  cost.time = p.wake_ups() + Seconds(governed) + late(p, work, governed);
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = start_up;
  cost.terms[static_cast<std::size_t>(Term::Bandwidth)] = cost.time - start_up;
  cost.model = "host copy: max(measured curve, bytes / link + oversleep)";
  cost.op_class = "copy";
  return cost;
}

CollectiveSchedule processor_collective(const Processor& p, const NodeType& node, OpKind kind,
                                        Bytes bytes, std::int32_t members) {
  CollectiveSchedule schedule;
  schedule.low = kLow;
  schedule.high = kHigh;
  schedule.algorithm = Algorithm::Direct;
  schedule.model = "host collective: wake-ups + max(measured curve, ring bytes / link + oversleep)";
  if (members == 1) return schedule;
  const SizeCurve* curve = find(p.collectives, collective_key(kind));
  if (curve == nullptr) {
    schedule.extrapolated = true;
    curve = find(p.collectives, "all_reduce");
  }
  if (curve == nullptr) {
    throw InputError("/processor/collectives", "", collective_key(kind), "has no curve",
                     "measure it: gputwin probes run --only collectives, then gputwin calibrate");
  }
  const auto size = static_cast<double>(bytes.value);
  const double load = ring_bytes(kind, size, members);
  const double link = node.pcie.per_gpu.value * node.pcie.efficiency;
  const double governed = link > 0 ? load / link : 0.0;
  const double work = curve->at(size) * ranks_per_core(p, node);
  schedule.latency = p.wake_ups() + late(p, work, governed);
  schedule.sm_share = 1.0;
  const bool message = kind == OpKind::SendTo || kind == OpKind::RecvFrom;
  const std::int32_t edges = message ? 1 : members;
  for (std::int32_t i = 0; i < edges; ++i) {
    schedule.edges.push_back({static_cast<std::uint32_t>(i),
                              static_cast<std::uint32_t>((i + 1) % members),
                              Bytes(std::llround(load))});
  }
  return schedule;
}

}  // namespace gputwin
