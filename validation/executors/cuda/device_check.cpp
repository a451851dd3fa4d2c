// gputwin_device_check FOLDER: checks kernels and products on GPU 0 against sums in double, times
// products, passes over memory, copies and copies under products, and leaves FOLDER/*.csv.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "validation/executors/cuda/gemm.h"
#include "validation/executors/cuda/kernels.h"

namespace gputwin::cuda {
namespace {

constexpr double kLimit = 60.0;  // seconds for one step
constexpr int kSkipped = 77;     // the exit code that ctest takes for "skipped"

using Floats = std::vector<float>;

struct Bench {
  Stream stream;
  Gemm gemm;
  Arena arena{std::size_t{2} << 30};
  int failures = 0;

  float* put(const Floats& values) {
    void* place = arena.take(values.size() * sizeof(float));
    copy(place, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice, stream);
    return static_cast<float*>(place);
  }
  void finish(const std::string& what) {
    Event end;
    end.record(stream);
    wait(end, kLimit, what);
  }
  Floats get(const float* place, std::size_t count) {
    Floats values(count);
    copy(values.data(), place, count * sizeof(float), cudaMemcpyDeviceToHost, stream);
    finish("a copy to the host");
    return values;
  }
  void verdict(const std::string& what, double error, double bound) {
    const bool good = error <= bound;  // false for a NaN
    failures += good ? 0 : 1;
    fmt::print("  {:<34}{:>12.2e}   bound {:.0e}   {}\n", what, error, bound,
               good ? "ok" : "WRONG");
  }
};

Floats drawn(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  Floats values(count);
  for (float& v : values) v = static_cast<float>(engine()) / 2147483648.0f - 1.0f;
  return values;
}

double total(const Floats& a, const Floats& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

void check_products(Bench& bench) {
  const std::int64_t m = 96, n = 64, k = 160;
  const Floats a = drawn(m * k, 1), b = drawn(k * n, 2);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      bench.arena.reset();
      float* const c = bench.put(Floats(m * n, 1.0f));
      bench.gemm.run({m, n, k, ta, tb, true, ta ? m : k, tb ? k : n, n}, bench.put(a), bench.put(b),
                     c, bench.stream);
      const Floats got = bench.get(c, m * n);
      double worst = 0;
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 1.0;
          for (std::int64_t l = 0; l < k; ++l) {
            sum += static_cast<double>(ta ? a[l * m + i] : a[i * k + l]) *
                   (tb ? b[j * k + l] : b[l * n + j]);
          }
          worst = std::max(worst, std::abs(got[i * n + j] - sum));
        }
      }
      bench.verdict(fmt::format("product {}{} added to C", ta ? "T" : "N", tb ? "T" : "N"), worst,
                    1e-4);
    }
  }
}

void check_rows(Bench& bench) {
  const std::int64_t rows = 48, cols = 300;
  bench.arena.reset();
  const Floats x = drawn(rows * cols, 3), ones(cols, 1.0f);
  float *const in = bench.put(x), *const out = bench.put(x), *const stats = bench.put(x);
  norm_forward({rows, cols, true, false}, {in, cols}, {bench.put(ones), cols}, {}, {out, cols},
               {stats, 2}, bench.stream.get());
  const Floats y = bench.get(out, rows * cols);
  double mean = 0, square = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    mean += y[c] / static_cast<double>(cols);
    square += static_cast<double>(y[c]) * y[c] / static_cast<double>(cols);
  }
  bench.verdict("norm: mean 0 of a row", std::abs(mean), 1e-5);
  bench.verdict("norm: variance 1 of a row", std::abs(square - 1.0), 1e-3);

  softmax_forward({rows, rows, cols, true}, {in, cols}, {out, cols}, bench.stream.get());
  const Floats p = bench.get(out, rows * cols);
  double worst = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t seen = r + cols - rows + 1;
    double sum = 0;
    for (std::int64_t c = 0; c < seen; ++c) sum += std::exp(static_cast<double>(x[r * cols + c]));
    for (std::int64_t c = 0; c < cols; ++c) {
      const double want = c < seen ? std::exp(static_cast<double>(x[r * cols + c])) / sum : 0.0;
      worst = std::max(worst, std::abs(p[r * cols + c] - want));
    }
  }
  bench.verdict("causal softmax", worst, 1e-6);
}

/// Rows of P sum to 1, so dV and dO have one total; and dQ . Q = dK . K, both being dS . S.
void check_attention(Bench& bench) {
  const AttentionShape shape{2, 4, 4, 40, 40, 32, true};
  const std::int64_t ld = shape.heads * shape.size;
  const std::size_t count = static_cast<std::size_t>(shape.samples * shape.queries * ld);
  bench.arena.reset();
  const Floats q = drawn(count, 4), k = drawn(count, 5), v = drawn(count, 6), g = drawn(count, 7);
  const Matrix mq{bench.put(q), ld}, mk{bench.put(k), ld}, mv{bench.put(v), ld};
  const Matrix mg{bench.put(g), ld}, mo{bench.put(q), ld};
  const Matrix dq{bench.put(q), ld}, dk{bench.put(q), ld}, dv{bench.put(q), ld};
  const Matrix sums{bench.put(q), static_cast<std::int64_t>(count)};
  attention_forward(shape, mq, mk, mv, mo, sums, bench.stream.get());
  attention_backward(shape, mq, mk, mv, mo, sums, mg, dq, dk, dv, bench.stream.get());
  const auto get = [&](const Matrix& m) { return bench.get(static_cast<float*>(m.data), count); };
  const Floats o = get(mo);
  double worst = 0;  // the last query of the first head against its definition
  const std::int64_t last = (shape.queries - 1) * ld;
  for (std::int64_t x = 0; x < shape.size; ++x) {
    double weight = 0, value = 0;
    for (std::int64_t j = 0; j < shape.keys; ++j) {
      double score = 0;
      for (std::int64_t c = 0; c < shape.size; ++c) {
        score += static_cast<double>(q[last + c]) * k[j * ld + c];
      }
      const double part = std::exp(score / std::sqrt(static_cast<double>(shape.size)));
      weight += part;
      value += part * v[j * ld + x];
    }
    worst = std::max(worst, std::abs(o[last + x] - value / weight));
  }
  bench.verdict("attention forward", worst, 1e-5);
  const Floats ones(count, 1.0f);
  bench.verdict("attention: totals of dV and dO", std::abs(total(get(dv), ones) - total(g, ones)),
                1e-2);
  bench.verdict("attention: dQ . Q = dK . K", std::abs(total(get(dq), q) - total(get(dk), k)),
                1e-2);
}

/// From zero moments the first step is the rate times the sign of the gradient.
void check_adam(Bench& bench) {
  bench.arena.reset();
  const std::size_t count = 1000;
  const Floats grad = drawn(count, 8), none(count, 0.0f);
  float* const weight = bench.put(none);
  const auto row = [&](float* place) { return Matrix{place, static_cast<std::int64_t>(count)}; };
  adam({}, count, row(bench.put(grad)), {}, row(weight), row(bench.put(none)), row(bench.put(none)),
       {}, bench.stream.get());
  const Floats after = bench.get(weight, count);
  double worst = 0;
  for (std::size_t k = 0; k < count; ++k) {
    if (std::abs(grad[k]) < 1e-3f) continue;
    worst = std::max(worst, std::abs(after[k] + std::copysign(1e-3, grad[k])));
  }
  bench.verdict("Adam's first step", worst, 1e-6);
}

/// Median device time of eleven runs after two.
double median_s(Bench& bench, const std::function<void()>& body) {
  std::vector<double> times;
  for (int run = 0; run < 13; ++run) {
    Event start, end;
    start.record(bench.stream);
    body();
    end.record(bench.stream);
    wait(end, kLimit, "a timed run");
    if (run >= 2) times.push_back(seconds_between(start, end));
  }
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

/// A table on the terminal and in a file, written beside its name and then moved there.
class Table {
 public:
  Table(const std::string& folder, const std::string& name, const std::string& columns)
      : path_(folder + "/" + name + ".csv"), text_(columns + "\n") {}
  void row(const std::string& line) { text_ += line + "\n"; }
  void close() const {
    const std::string part = path_ + ".part";
    std::FILE* file = std::fopen(part.c_str(), "w");
    const bool opened = file != nullptr;
    const bool written = opened && std::fputs(text_.c_str(), file) >= 0;
    const bool closed = opened && std::fclose(file) == 0;
    if (!written || !closed || std::rename(part.c_str(), path_.c_str()) != 0) {
      std::remove(part.c_str());
      throw DeviceError(path_ + " could not be written");
    }
    fmt::print("{}\n", text_);
  }

 private:
  std::string path_, text_;
};

void time_products(Bench& bench, const std::string& folder) {
  Table table(folder, "gemm", "dtype,m,n,k,time_us,tflops");
  for (const auto& [type, name] : {std::pair{CUDA_R_16BF, "bf16"}, {CUDA_R_32F, "fp32"}}) {
    for (const std::int64_t size : {512, 1024, 2048, 4096, 8192}) {
      bench.arena.reset();
      const auto bytes = static_cast<std::size_t>(size * size) * (type == CUDA_R_32F ? 4 : 2);
      void *a = bench.arena.take(bytes), *b = bench.arena.take(bytes), *c = bench.arena.take(bytes);
      for (void* m : {a, b}) GPUTWIN_CUDA(cudaMemsetAsync(m, 0x11, bytes, bench.stream.get()));
      Product product{size, size, size, false, false, false, size, size, size, type};
      product.out = type;
      const double s = median_s(bench, [&] { bench.gemm.run(product, a, b, c, bench.stream); });
      table.row(fmt::format("{},{},{},{},{:.2f},{:.2f}", name, size, size, size, s * 1e6,
                            2e-12 * static_cast<double>(size * size * size) / s));
    }
  }
  table.close();
}

void time_memory(Bench& bench, const std::string& folder) {
  Table table(folder, "memory_bound", "op,elements,time_us,GBps");
  for (const std::int64_t count : {1 << 16, 1 << 20, 1 << 24, 1 << 26}) {
    bench.arena.reset();
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    auto* x = static_cast<float*>(bench.arena.take(bytes));
    auto* y = static_cast<float*>(bench.arena.take(bytes));
    GPUTWIN_CUDA(cudaMemsetAsync(x, 0, bytes, bench.stream.get()));
    const double s = median_s(bench, [&] {
      add(1, count, {x, count}, {}, {}, 2.0f, {y, count}, bench.stream.get());
    });
    table.row(fmt::format("scale,{},{:.2f},{:.1f}", count, s * 1e6,
                          2e-9 * static_cast<double>(bytes) / s));
  }
  table.close();
}

void time_copies(Bench& bench, const std::string& folder) {
  Table table(folder, "copies", "direction,pinned,bytes,time_us,GBps");
  for (const std::size_t bytes :
       {std::size_t{1} << 16, std::size_t{1} << 22, std::size_t{1} << 28}) {
    bench.arena.reset();
    void* const there = bench.arena.take(bytes);
    for (const bool pinned : {true, false}) {
      HostBuffer here(bytes, pinned);
      for (const bool in : {true, false}) {
        const double s = median_s(bench, [&] {
          copy(in ? there : here.data(), in ? here.data() : there, bytes,
               in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, bench.stream);
        });
        table.row(fmt::format("{},{},{},{:.2f},{:.2f}", in ? "h2d" : "d2h", pinned, bytes, s * 1e6,
                              1e-9 * static_cast<double>(bytes) / s));
      }
    }
  }
  table.close();
}

/// A copy under a product on another stream: together they should take the longer of the two.
void time_overlap(Bench& bench, const std::string& folder) {
  bench.arena.reset();
  const std::int64_t size = 4096;
  const std::size_t bytes = std::size_t{1} << 26;
  void *a = bench.arena.take(bytes), *b = bench.arena.take(bytes), *c = bench.arena.take(bytes);
  void* const there = bench.arena.take(bytes);
  HostBuffer here(bytes, true);
  Stream other;
  const Product product{size, size, size, false, false, false, size, size, size};
  const auto multiply = [&] { bench.gemm.run(product, a, b, c, bench.stream); };
  const auto move = [&](const Stream& s) {
    copy(there, here.data(), bytes, cudaMemcpyHostToDevice, s);
  };
  const double alone = median_s(bench, multiply);
  const double moved = median_s(bench, [&] { move(bench.stream); });
  const double both = median_s(bench, [&] {
    Event start, end;
    start.record(bench.stream);
    start.wait_on(other);
    move(other);
    end.record(other);
    multiply();
    end.wait_on(bench.stream);
  });
  Table table(folder, "overlap", "product_us,copy_us,together_us");
  table.row(fmt::format("{:.1f},{:.1f},{:.1f}", alone * 1e6, moved * 1e6, both * 1e6));
  table.close();
}

int run(const std::string& folder) {
  if (device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return kSkipped;
  }
  use_device(0);
  Bench bench;
  time_products(bench, folder);
  time_memory(bench, folder);
  time_copies(bench, folder);
  time_overlap(bench, folder);
  check_products(bench);
  check_rows(bench);
  check_attention(bench);
  check_adam(bench);
  fmt::print("{}\n", bench.failures == 0 ? "all right" : "WRONG: see above");
  return bench.failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gputwin::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr,
               "usage: gputwin_device_check FOLDER, for example: gputwin_device_check out\n");
    return 2;
  }
  try {
    return gputwin::cuda::run(argv[1]);
  } catch (const gputwin::cuda::DeviceError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
