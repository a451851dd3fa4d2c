#include "validation/executors/host/host_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

namespace gputwin::executors {

struct Chunk::Store {
  bool poison = false;
  std::mutex mutex;
  std::multimap<std::int64_t, std::unique_ptr<std::byte[]>> free;  // by capacity
  std::int64_t in_use = 0, peak = 0;

  /// A piece of at least `size` bytes that wastes less than half of itself, or a new one.
  std::pair<std::unique_ptr<std::byte[]>, std::int64_t> take(std::int64_t size) {
    const std::lock_guard lock(mutex);
    in_use += size;
    peak = std::max(peak, in_use);
    const auto found = free.lower_bound(size);
    if (found == free.end() || found->first > 2 * size) {
      return {std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(size)), size};
    }
    auto taken = free.extract(found);
    return {std::move(taken.mapped()), taken.key()};
  }
  void give_back(std::unique_ptr<std::byte[]> bytes, std::int64_t capacity, std::int64_t size) {
    const std::lock_guard lock(mutex);
    in_use -= size;
    free.emplace(capacity, std::move(bytes));
  }
};

std::byte* Chunk::data() {
  if (lent_ != nullptr) return lent_;
  std::call_once(taken_, [this] {
    std::tie(bytes_, capacity_) = store_->take(size_);
    if (store_->poison) std::memset(bytes_.get(), 0xff, static_cast<std::size_t>(size_));
  });
  return bytes_.get();
}

Chunk::~Chunk() {
  if (bytes_ != nullptr) store_->give_back(std::move(bytes_), capacity_, size_);
}

MemoryPool::MemoryPool(bool poison) : store_(std::make_shared<Chunk::Store>()) {
  store_->poison = poison;
}

HostMemory MemoryPool::allocate(std::int64_t bytes) { return HostMemory(new Chunk(bytes, store_)); }

HostMemory borrowed(std::byte* bytes, std::int64_t size) {
  HostMemory chunk(new Chunk(size, nullptr));
  chunk->lent_ = bytes;
  return chunk;
}

std::int64_t MemoryPool::peak_bytes() const {
  const std::lock_guard lock(store_->mutex);
  return store_->peak;
}

bool runs_on_host(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::Tf32:
    case DType::Bf16:
    case DType::I64:
    case DType::I32:
    case DType::U8: return true;
    case DType::F16:
    case DType::F8:
    case DType::Mxf8:
    case DType::Nvf4: break;
  }
  return false;
}

namespace {

bool without_gaps(const View& view) { return view.rows <= 1 || view.ld == view.cols; }

/// Where the view starts; all of it lies inside the memory.
std::byte* base(const HostOperand& operand) {
  const View& view = operand.view;
  const std::int64_t size = bits(view.dtype) / 8;
  const std::int64_t end = view.offset + (view.rows - 1) * view.ld + view.cols;
  GPUTWIN_CHECK(view.offset >= 0 && end * size <= operand.memory->size(),
                "views lie in their buffers");
  return operand.memory->data() + view.offset * size;
}

/// A 16-bit float whose upper half of bits it is.
struct Bf16 {
  std::uint16_t bits;
  template <class Real>
  explicit operator Real() const {
    return static_cast<Real>(std::bit_cast<float>(std::uint32_t{bits} << 16));
  }
  /// To nearest, ties to even; NaN stays NaN.
  explicit Bf16(double value) {
    const auto single = static_cast<float>(value);
    const auto word = std::bit_cast<std::uint32_t>(single);
    bits = static_cast<std::uint16_t>(
        std::isnan(single) ? word >> 16 | 0x40u : (word + 0x7fffu + (word >> 16 & 1u)) >> 16);
  }
};

/// Calls f(type) with a pointer to the C++ type of a format.
template <class F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::F32:
    case DType::Tf32: return f(static_cast<float*>(nullptr));
    case DType::Bf16: return f(static_cast<Bf16*>(nullptr));
    case DType::I64: return f(static_cast<std::int64_t*>(nullptr));
    case DType::I32: return f(static_cast<std::int32_t*>(nullptr));
    case DType::U8: return f(static_cast<std::uint8_t*>(nullptr));
    case DType::F16:
    case DType::F8:
    case DType::Mxf8:
    case DType::Nvf4: break;
  }
  GPUTWIN_CHECK(false, "plans with other formats are refused before they run");
}

/// NaN is no integer: what was never written is 0 there.
template <class T, class Real>
T converted(Real value) {
  if constexpr (std::is_integral_v<T>) {
    if (std::isnan(value)) return 0;
  }
  return static_cast<T>(value);
}

}  // namespace

std::uint8_t* bytes_of_operand(const HostOperand& operand) {
  GPUTWIN_CHECK(without_gaps(operand.view), "bytes of a view without gaps");
  return reinterpret_cast<std::uint8_t*>(base(operand));
}

float* floats_of(const HostOperand& operand) {
  const View& view = operand.view;
  const bool single = view.dtype == DType::F32 || view.dtype == DType::Tf32;
  if (!single || !without_gaps(view) || view.elements() == 0) return nullptr;
  return reinterpret_cast<float*>(base(operand));
}

template <class Real>
std::vector<Real> load(const HostOperand& from) {
  const View& view = from.view;
  std::vector<Real> values(static_cast<std::size_t>(view.elements()));
  if (values.empty()) return values;
  const std::byte* const first = base(from);
  with_type(view.dtype, [&]<class T>(T*) {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      const T* row = reinterpret_cast<const T*>(first) + r * view.ld;
      Real* to = values.data() + r * view.cols;
      for (std::int64_t c = 0; c < view.cols; ++c) to[c] = static_cast<Real>(row[c]);
    }
  });
  return values;
}

template <class Real>
void store(const HostOperand& to, const std::vector<Real>& values) {
  const View& view = to.view;
  GPUTWIN_CHECK(static_cast<std::int64_t>(values.size()) == view.elements(),
                "as many values as the view has elements");
  if (values.empty()) return;
  std::byte* const first = base(to);
  with_type(view.dtype, [&]<class T>(T*) {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      T* row = reinterpret_cast<T*>(first) + r * view.ld;
      const Real* from = values.data() + r * view.cols;
      for (std::int64_t c = 0; c < view.cols; ++c) row[c] = converted<T>(from[c]);
    }
  });
}

template std::vector<float> load(const HostOperand&);
template std::vector<double> load(const HostOperand&);
template void store(const HostOperand&, const std::vector<float>&);
template void store(const HostOperand&, const std::vector<double>&);

}  // namespace gputwin::executors
