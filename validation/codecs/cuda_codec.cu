#include <cuda_runtime_api.h>

#include <cub/block/block_scan.cuh>

#include "sim/core/check.h"
#include "validation/codecs/cuda_codec.h"

namespace gputwin::codecs {
namespace {

constexpr int kThreads = 256;
using Scan = cub::BlockScan<int, kThreads>;

/// What a launch knows of the codec and of its rows.
struct RowForm {
  CodecKind kind;
  Element element;
  int width, kept, bits, each;  // each: bits of an index
  int scale_bytes;              // 8, or 0 without a codec
  long long stride;             // bytes of a row's payload
  bool bitmap;
};

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    throw CudaError(std::string(call) + ": " + cudaGetErrorString(error));
  }
}

RowForm form_of(const Codec& codec, Element element, std::int64_t width) {
  const std::string why = unfit(codec, width);
  GPUTWIN_CHECK(why.empty(), why);
  const bool none = codec.kind == CodecKind::None;
  const std::int64_t kept = kept_values(codec, width);
  return {codec.kind,
          element,
          static_cast<int>(width),
          static_cast<int>(kept),
          none ? 16 : codec.bits,
          static_cast<int>(index_bits(width)),
          none ? 0 : 8,
          none ? 2 * width : row_bytes(codec, width),
          uses_bitmap(kept, width)};
}

/// Magnitude as 31 bits whose order is that of the values; 16-bit elements fill the upper half.
__device__ unsigned key_at(const RowForm& f, const void* row, int i) {
  if (f.element == Element::Fp32) return static_cast<const unsigned*>(row)[i] & 0x7fffffffu;
  return static_cast<unsigned>(static_cast<const std::uint16_t*>(row)[i] & 0x7fff) << 16;
}

__device__ float value_at(const RowForm& f, const void* row, int i) {
  if (f.element == Element::Fp32) return static_cast<const float*>(row)[i];
  const std::uint16_t half = static_cast<const std::uint16_t*>(row)[i];
  return f.element == Element::Bf16 ? from_bf16(half) : from_fp16(half);
}

__device__ std::uint16_t half_at(const RowForm& f, const void* row, int i) {
  if (f.element == Element::Fp32) return to_bf16(static_cast<const float*>(row)[i]);
  return static_cast<const std::uint16_t*>(row)[i];
}

/// What the threads of a block share beside the row's arrays.
struct BlockState {
  Scan::TempStorage scan;
  int histogram[256];
  int below[kBreaks];
  unsigned prefix, least, largest;
  int wanted;  // of the elements equal to the prefix in the bits seen so far
  int low_order, high_order;
  unsigned long long scales;
};

/// One row's arrays in dynamic shared memory.
struct RowArrays {
  float* values;
  unsigned* bitmap;
  std::uint16_t *codes, *positions;
};

std::size_t array_bytes(const RowForm& f) {
  return 4 * static_cast<std::size_t>(f.kept) +
         4 * ((static_cast<std::size_t>(f.width) + 31) / 32) + 4 * static_cast<std::size_t>(f.kept);
}

__device__ RowArrays arrays_in(unsigned char* shared, const RowForm& f) {
  RowArrays a;
  a.values = reinterpret_cast<float*>(shared);
  a.bitmap = reinterpret_cast<unsigned*>(a.values + f.kept);
  a.codes = reinterpret_cast<std::uint16_t*>(a.bitmap + (f.width + 31) / 32);
  a.positions = a.codes + f.kept;
  return a;
}

/// Finds the kept-th largest key, eight bits at a time from the top: the key in prefix, and in
/// wanted how many of its equals are kept.
__device__ void radix_select(const RowForm& f, const void* row, BlockState& s) {
  if (threadIdx.x == 0) {
    s.prefix = 0;
    s.wanted = f.kept;
  }
  for (int shift = 24; shift >= (f.element == Element::Fp32 ? 0 : 16); shift -= 8) {
    s.histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < f.width; i += kThreads) {
      const unsigned key = key_at(f, row, i);
      const bool seen = shift == 24 || key >> (shift + 8) == s.prefix >> (shift + 8);
      if (seen) atomicAdd(&s.histogram[key >> shift & 255u], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      for (; s.histogram[digit] < s.wanted; --digit) s.wanted -= s.histogram[digit];
      s.prefix |= static_cast<unsigned>(digit) << shift;
    }
    __syncthreads();
  }
}

/// Positions of the kept elements, ascending, and their bitmap.
__device__ void compact(const RowForm& f, const void* row, const RowArrays& a, BlockState& s) {
  for (int i = static_cast<int>(threadIdx.x); i < (f.width + 31) / 32; i += kThreads) {
    a.bitmap[i] = 0;
  }
  __syncthreads();
  int placed = 0, equals = 0;  // alike in all threads
  for (int first = 0; first < f.width; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const unsigned key = i < f.width ? key_at(f, row, i) : 0;
    const int equal = i < f.width && key == s.prefix ? 1 : 0;
    int equal_before = 0, equal_here = 0, before = 0, here = 0;
    Scan(s.scan).ExclusiveSum(equal, equal_before, equal_here);
    __syncthreads();
    const bool above = i < f.width && key > s.prefix;
    const int keep = above || (equal != 0 && equals + equal_before < s.wanted) ? 1 : 0;
    Scan(s.scan).ExclusiveSum(keep, before, here);
    __syncthreads();
    if (keep != 0) {
      a.positions[placed + before] = static_cast<std::uint16_t>(i);
      atomicOr(&a.bitmap[i / 32], 1u << (i % 32));
    }
    placed += here;
    equals += equal_here;
  }
  __syncthreads();
}

/// An order of floats as signed integers.
__device__ int order_of(float v) {
  const int bits = static_cast<int>(bits_of_float(v));
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

__device__ float of_order(int order) {
  return float_of_bits(static_cast<unsigned>(order >= 0 ? order : order ^ 0x7fffffff));
}

__device__ void find_range(const RowForm& f, const RowArrays& a, BlockState& s) {
  if (threadIdx.x == 0) {
    s.least = 0x7fffffffu;
    s.largest = 0;
    s.low_order = 0x7fffffff;
    s.high_order = static_cast<int>(0x80000000u);
  }
  if (threadIdx.x < kBreaks) s.below[threadIdx.x] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < f.kept; i += kThreads) {
    const unsigned key = bits_of_float(a.values[i]) & 0x7fffffffu;
    atomicMin(&s.least, key);
    atomicMax(&s.largest, key);
    atomicMin(&s.low_order, order_of(a.values[i]));
    atomicMax(&s.high_order, order_of(a.values[i]));
  }
  __syncthreads();
}

template <class Scale>
__device__ unsigned long long packed(const Scale& scale) {
  unsigned long long bits;
  memcpy(&bits, &scale, 8);
  return bits;
}

template <class Scale>
__device__ Scale unpacked(unsigned long long bits) {
  Scale scale;
  memcpy(&scale, &bits, 8);
  return scale;
}

__device__ PieceScale piece_scale(const RowForm& f, const RowArrays& a, BlockState& s) {
  PieceScale scale;
  scale.top = float_of_bits(s.largest);
  scale.low = piece_low(float_of_bits(s.least), scale.top);
  const double low = scale.top * (scale.low / 65535.0), range = scale.top - low;
  const double by_range = range > 0 ? 1 / range : 0;
  const int stride = static_cast<int>(break_stride(f.kept));
  for (int i = static_cast<int>(threadIdx.x) * stride; i < f.kept; i += kThreads * stride) {
    atomicAdd(&s.below[break_cell(low, by_range, a.values[i])], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int c = 1; c < kBreaks; ++c) s.below[c] += s.below[c - 1];
    scale.at = best_break(s.below, 1 << (f.bits - 2));
    s.scales = packed(scale);
  }
  __syncthreads();
  return unpacked<PieceScale>(s.scales);
}

__device__ void quantise(const RowForm& f, const RowArrays& a, BlockState& s) {
  find_range(f, a, s);
  const bool finite = s.largest < 0x7f800000u;
  const float nan = float_of_bits(0x7fc00000u);
  const int first = static_cast<int>(threadIdx.x);
  if (f.kind == CodecKind::Block) {
    const EvenScale scale =
        finite ? EvenScale{of_order(s.low_order) + 0.0F, of_order(s.high_order) + 0.0F}
               : EvenScale{nan, nan};
    const EvenGrid grid = even_grid(scale, f.bits);
    for (int i = first; i < f.kept; i += kThreads) {
      a.codes[i] = static_cast<std::uint16_t>(finite ? even_code(grid, a.values[i]) : 0);
    }
    if (first == 0) s.scales = packed(scale);
    return;
  }
  const PieceScale scale = finite ? piece_scale(f, a, s) : PieceScale{nan, 0, kBreaks};
  const PieceGrid grid = piece_grid(scale, f.bits);
  for (int i = first; i < f.kept; i += kThreads) {
    a.codes[i] = static_cast<std::uint16_t>(finite ? piece_code(grid, a.values[i]) : 0);
  }
  if (first == 0) s.scales = packed(scale);
}

/// Bit n of the row behind its scales.
__device__ unsigned bit_of(const RowForm& f, const RowArrays& a, int n) {
  if (n < f.kept * f.bits) return a.codes[n / f.bits] >> (n % f.bits) & 1u;
  if (f.kept == f.width || f.kept == 0) return 0;
  n -= f.kept * f.bits;
  if (f.bitmap) return n < f.width ? a.bitmap[n / 32] >> (n % 32) & 1u : 0;
  return n < f.kept * f.each ? a.positions[n / f.each] >> (n % f.each) & 1u : 0;
}

__global__ void encode_rows(RowForm f, const unsigned char* x, unsigned char* payload) {
  extern __shared__ unsigned char shared[];
  __shared__ BlockState s;
  const RowArrays a = arrays_in(shared, f);
  const long long size = static_cast<long long>(f.width) * (f.element == Element::Fp32 ? 4 : 2);
  const void* row = x + blockIdx.x * size;
  unsigned char* out = payload + blockIdx.x * f.stride;
  const int first = static_cast<int>(threadIdx.x);
  if (first == 0) s.scales = 0;
  const bool all = f.kept == f.width;
  if (!all && f.kept > 0) {
    radix_select(f, row, s);
    compact(f, row, a, s);
  }
  const bool halves = f.kind == CodecKind::None || f.kind == CodecKind::Topk;
  for (int i = first; i < f.kept; i += kThreads) {
    const int at = all ? i : a.positions[i];
    if (halves)
      a.codes[i] = half_at(f, row, at);
    else
      a.values[i] = value_at(f, row, at);
  }
  __syncthreads();
  if (!halves && f.kept > 0) quantise(f, a, s);
  __syncthreads();
  for (int b = first; b < f.stride; b += kThreads) {
    unsigned byte = 0;
    if (b < f.scale_bytes) {
      byte = static_cast<unsigned>(s.scales >> (8 * b)) & 255u;
    } else {
      for (int n = 0; n < 8; ++n) byte |= bit_of(f, a, 8 * (b - f.scale_bytes) + n) << n;
    }
    out[b] = static_cast<unsigned char>(byte);
  }
}

/// `count` (up to 16) bits of the row, from bit n behind its scales.
__device__ unsigned bits_at(const RowForm& f, const unsigned char* row, int n, int count) {
  const unsigned char* from = row + f.scale_bytes + n / 8;
  unsigned held = 0;
  for (int b = 0; 8 * b < n % 8 + count; ++b) held |= static_cast<unsigned>(from[b]) << (8 * b);
  return held >> (n % 8) & ((1u << count) - 1);
}

struct Decoder {
  RowForm f;
  const unsigned char* row;
  PieceGrid piece;
  EvenGrid even;

  __device__ Decoder(const RowForm& form, const unsigned char* payload) : f(form), row(payload) {
    unsigned long long scales = 0;
    for (int b = 0; b < f.scale_bytes; ++b) {
      scales |= static_cast<unsigned long long>(row[b]) << (8 * b);
    }
    if (f.kind == CodecKind::Block) even = even_grid(unpacked<EvenScale>(scales), f.bits);
    if (f.kind == CodecKind::Pwq || f.kind == CodecKind::TopkPwq) {
      piece = piece_grid(unpacked<PieceScale>(scales), f.bits);
    }
  }

  __device__ float value(int i) const {
    const int code = static_cast<int>(bits_at(f, row, i * f.bits, f.bits));
    if (f.kind == CodecKind::Block) return even_value(even, code);
    if (f.kind == CodecKind::Pwq || f.kind == CodecKind::TopkPwq) return piece_value(piece, code);
    const auto half = static_cast<std::uint16_t>(code);
    return f.element == Element::Fp16 ? from_fp16(half) : from_bf16(half);
  }
};

__global__ void accumulate_rows(RowForm f, const unsigned char* payload, float* out) {
  __shared__ Scan::TempStorage scan;
  const Decoder decoder(f, payload + blockIdx.x * f.stride);
  float* to = out + static_cast<long long>(blockIdx.x) * f.width;
  const int first = static_cast<int>(threadIdx.x), start = f.kept * f.bits;
  if (f.kept == f.width) {
    for (int i = first; i < f.kept; i += kThreads) to[i] += decoder.value(i);
    return;
  }
  if (!f.bitmap) {
    for (int i = first; i < f.kept; i += kThreads) {
      to[bits_at(f, decoder.row, start + i * f.each, f.each)] += decoder.value(i);
    }
    return;
  }
  int placed = 0;
  for (int tile = 0; tile < f.width; tile += kThreads) {
    const int i = tile + first;
    const int keep = i < f.width ? static_cast<int>(bits_at(f, decoder.row, start + i, 1)) : 0;
    int before = 0, here = 0;
    Scan(scan).ExclusiveSum(keep, before, here);
    __syncthreads();
    if (keep != 0) to[i] += decoder.value(placed + before);
    placed += here;
  }
}

}  // namespace

int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

DeviceBytes::DeviceBytes(std::size_t size) : size_(size) {
  check(cudaMalloc(&data_, size > 0 ? size : 1), "cudaMalloc");
}

// A failure to free shows in the next call that is checked; a destructor cannot throw.
DeviceBytes::~DeviceBytes() { static_cast<void>(cudaFree(data_)); }

void DeviceBytes::from_host(const void* source) {
  check(cudaMemcpy(data_, source, size_, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void DeviceBytes::to_host(void* target) const {
  check(cudaMemcpy(target, data_, size_, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void cuda_encode(const Codec& codec, const TensorView& x, std::uint8_t* payload,
                 CUstream_st* stream) {
  if (x.tokens == 0 || x.width == 0) return;
  const RowForm form = form_of(codec, x.element, x.width);
  const std::size_t bytes = array_bytes(form);
  check(cudaFuncSetAttribute(encode_rows, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute (a token's values stand in shared memory)");
  encode_rows<<<static_cast<unsigned>(x.tokens), kThreads, bytes, stream>>>(
      form, static_cast<const unsigned char*>(x.data), payload);
  check(cudaGetLastError(), "encode_rows");
}

void cuda_accumulate(const Codec& codec, const std::uint8_t* payload, Element element,
                     std::int64_t tokens, std::int64_t width, float* out, CUstream_st* stream) {
  if (tokens == 0 || width == 0) return;
  const RowForm form = form_of(codec, element, width);
  accumulate_rows<<<static_cast<unsigned>(tokens), kThreads, 0, stream>>>(form, payload, out);
  check(cudaGetLastError(), "accumulate_rows");
}

void cuda_decode(const Codec& codec, const std::uint8_t* payload, Element element,
                 std::int64_t tokens, std::int64_t width, float* out, CUstream_st* stream) {
  check(cudaMemsetAsync(out, 0, static_cast<std::size_t>(tokens * width) * 4, stream),
        "cudaMemsetAsync");
  cuda_accumulate(codec, payload, element, tokens, width, out, stream);
}

}  // namespace gputwin::codecs
