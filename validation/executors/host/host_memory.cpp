#include "validation/executors/host/host_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>

namespace gputwin::executors {

struct MemoryPool::State {
  bool poison = false;
  mutable std::mutex mutex;
  std::map<std::int64_t, std::vector<Chunk>> free;  // by size
  std::int64_t in_use = 0, peak = 0;

  void give_back(Chunk&& chunk) {
    const std::lock_guard lock(mutex);
    in_use -= chunk.size;
    const std::int64_t size = chunk.size;
    free[size].push_back(std::move(chunk));
  }
};

MemoryPool::MemoryPool(bool poison) : state_(std::make_shared<State>()) { state_->poison = poison; }

HostMemory MemoryPool::allocate(std::int64_t bytes) {
  Chunk chunk;
  {
    const std::lock_guard lock(state_->mutex);
    auto& same = state_->free[bytes];
    if (!same.empty()) {
      chunk = std::move(same.back());
      same.pop_back();
    }
    state_->in_use += bytes;
    state_->peak = std::max(state_->peak, state_->in_use);
  }
  if (chunk.bytes == nullptr) {
    chunk.bytes = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes));
    chunk.size = bytes;
  }
  if (state_->poison) std::memset(chunk.bytes.get(), 0xff, static_cast<std::size_t>(bytes));
  return {new Chunk(std::move(chunk)), [state = state_](Chunk* used) {
            state->give_back(std::move(*used));
            delete used;
          }};
}

std::int64_t MemoryPool::peak_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->peak;
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

template <class T, class Real>
Real read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return static_cast<Real>(value);
}

template <class T, class Real>
void write_as(std::byte* at, Real value) {
  const T rounded = static_cast<T>(value);
  std::memcpy(at, &rounded, sizeof(T));
}

template <class Real>
Real read_bf16(const std::byte* at) {
  return static_cast<Real>(
      std::bit_cast<float>(std::uint32_t{read_as<std::uint16_t, std::uint16_t>(at)} << 16));
}

template <class Real>
void write_bf16(std::byte* at, Real value) {
  const auto single = static_cast<float>(value);
  std::uint32_t word = std::bit_cast<std::uint32_t>(single);
  if (single == single) word += 0x7fffu + ((word >> 16) & 1u);
  write_as<std::uint16_t>(at, static_cast<std::uint16_t>(word >> 16));
}

template <class Real>
Real read_one(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::Tf32: return read_as<float, Real>(at);
    case DType::Bf16: return read_bf16<Real>(at);
    case DType::I64: return read_as<std::int64_t, Real>(at);
    case DType::I32: return read_as<std::int32_t, Real>(at);
    case DType::U8: return read_as<std::uint8_t, Real>(at);
    case DType::F16:
    case DType::F8:
    case DType::Mxf8:
    case DType::Nvf4: break;
  }
  GPUTWIN_CHECK(false, "plans with other formats are refused before they run");
}

template <class Real>
void write_one(std::byte* at, DType dtype, Real value) {
  switch (dtype) {
    case DType::F32:
    case DType::Tf32: return write_as<float>(at, value);
    case DType::Bf16: return write_bf16(at, value);
    case DType::I64: return write_as<std::int64_t>(at, value);
    case DType::I32: return write_as<std::int32_t>(at, value);
    case DType::U8: return write_as<std::uint8_t>(at, value);
    case DType::F16:
    case DType::F8:
    case DType::Mxf8:
    case DType::Nvf4: break;
  }
  GPUTWIN_CHECK(false, "plans with other formats are refused before they run");
}

/// First byte of element `index`, row by row.
std::byte* at(const HostOperand& operand, std::int64_t index) {
  const View& view = operand.view;
  const std::int64_t element = view.offset + index / view.cols * view.ld + index % view.cols;
  const std::int64_t size = bits(view.dtype) / 8, first = element * size;
  GPUTWIN_CHECK(first >= 0 && first + size <= operand.memory->size, "views lie in their buffers");
  return operand.memory->bytes.get() + first;
}

bool without_gaps(const View& view) { return view.rows <= 1 || view.ld == view.cols; }

}  // namespace

float* floats_of(const HostOperand& operand) {
  const View& view = operand.view;
  const bool single = view.dtype == DType::F32 || view.dtype == DType::Tf32;
  if (!single || !without_gaps(view) || view.elements() == 0) return nullptr;
  at(operand, view.elements() - 1);  // the end lies inside
  return reinterpret_cast<float*>(at(operand, 0));
}

template <class Real>
std::vector<Real> load(const HostOperand& from) {
  const std::int64_t n = from.view.elements();
  if (const float* dense = floats_of(from)) return std::vector<Real>(dense, dense + n);
  std::vector<Real> values(static_cast<std::size_t>(n));
  for (std::int64_t k = 0; k < n; ++k) values[k] = read_one<Real>(at(from, k), from.view.dtype);
  return values;
}

template <class Real>
void store(const HostOperand& to, const std::vector<Real>& values) {
  GPUTWIN_CHECK(static_cast<std::int64_t>(values.size()) == to.view.elements(),
                "as many values as the view has elements");
  for (std::size_t k = 0; k < values.size(); ++k) {
    write_one(at(to, static_cast<std::int64_t>(k)), to.view.dtype, values[k]);
  }
}

template std::vector<float> load(const HostOperand&);
template std::vector<double> load(const HostOperand&);
template void store(const HostOperand&, const std::vector<float>&);
template void store(const HostOperand&, const std::vector<double>&);

}  // namespace gputwin::executors
