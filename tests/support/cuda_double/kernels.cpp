// Kernels of the double: a block's threads as fibers, and the codecs' kernels by those of the
// processor.
#include "tests/support/cuda_double/kernels_on_cpu.h"

#include <ucontext.h>
#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/support/cuda_double/engine.h"
#include "validation/codecs/cuda_codec.h"

namespace gputwin::cuda_double {

namespace {

constexpr std::size_t kStack = std::size_t{64} << 10;
constexpr int kWarp = 32;

/// A thread of every block: entered by swapcontext once, left and entered again by longjmp, which
/// makes no system call.
struct Fiber {
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStack);
  ucontext_t context{};
  std::jmp_buf place;
  bool begun = false, ended = false;
  int shuffles = 0;
  float lanes[2] = {0, 0};
};

std::vector<Fiber> fibers;
std::jmp_buf scheduler;
ucontext_t unused;
const std::function<void()>* body_of_block = nullptr;

void run_threads() {
  for (;;) {
    (*body_of_block)();
    fibers[threadIdx.x].ended = true;
    barrier();  // until the next block
  }
}

void resume(unsigned x) {
  Fiber& fiber = fibers[x];
  threadIdx.x = x;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_threads, 0);
  swapcontext(&unused, &fiber.context);
}

void run_block(int threads, const std::function<void()>& body) {
  body_of_block = &body;
  for (Fiber& fiber : fibers) fiber.ended = false;
  int left = threads;
  while (left > 0) {
    for (int warp = 0; warp < threads; warp += kWarp) {
      int ended = 0, alive = 0;
      for (int x = warp; x < std::min(warp + kWarp, threads); ++x) {
        if (fibers[static_cast<std::size_t>(x)].ended) continue;
        resume(static_cast<unsigned>(x));
        ++alive;
        ended += fibers[static_cast<std::size_t>(x)].ended ? 1 : 0;
      }
      // Warps may end at different times, if nobody waits for the whole block then.
      if (ended != 0 && ended != alive) wrong("some threads of a warp end at a barrier of others");
      left -= ended;
    }
  }
}

}  // namespace

void barrier() {
  if (_setjmp(fibers[threadIdx.x].place) == 0) _longjmp(scheduler, 1);
}

float from_lane(float value, int lane_mask) {
  const unsigned x = threadIdx.x;
  const int turn = fibers[x].shuffles++ % 2;  // the turn before may still be read
  fibers[x].lanes[turn] = value;
  barrier();
  return fibers[x ^ static_cast<unsigned>(lane_mask)].lanes[turn];
}

void launch(const char* name, std::int64_t blocks, int threads, cudaStream_t stream,
            std::function<void()> body) {
  const std::lock_guard guard(mutex());
  enqueue_now(stream, name, [=] {
    fibers.resize(static_cast<std::size_t>(threads));
    gridDim.x = static_cast<unsigned>(blocks);
    for (std::int64_t b = 0; b < blocks; ++b) {
      blockIdx.x = static_cast<unsigned>(b);
      run_block(threads, body);
    }
  });
}

}  // namespace gputwin::cuda_double

namespace gputwin::codecs {

using namespace cuda_double;

namespace {

/// The codecs' CUDA kernels are compared with these on a GPU (cuda_codec_test).
void enqueue_codec(const char* name, CUstream_st* stream, const std::function<void()>& work) {
  const std::lock_guard guard(mutex());
  if (fails(name)) throw CudaError(std::string(name) + " failed");
  enqueue_now(stream, name, work);
}

std::span<const std::uint8_t> payload_of(const Codec& codec, const std::uint8_t* data,
                                         std::int64_t tokens, std::int64_t width) {
  return {data, static_cast<std::size_t>(payload_bytes(codec, tokens, width).value)};
}

}  // namespace

void cuda_encode(const Codec& codec, const TensorView& x, std::uint8_t* payload,
                 CUstream_st* stream) {
  enqueue_codec("encode_rows", stream, [=] {
    const auto size = static_cast<std::size_t>(payload_bytes(codec, x.tokens, x.width).value);
    encode(codec, x, {payload, size});
  });
}

void cuda_decode(const Codec& codec, const std::uint8_t* payload, Element element,
                 std::int64_t tokens, std::int64_t width, float* out, CUstream_st* stream) {
  enqueue_codec("decode_rows", stream, [=] {
    decode(codec, payload_of(codec, payload, tokens, width), element, tokens, width, out);
  });
}

void cuda_accumulate(const Codec& codec, const std::uint8_t* payload, Element element,
                     std::int64_t tokens, std::int64_t width, float* out, CUstream_st* stream) {
  enqueue_codec("accumulate_rows", stream, [=] {
    accumulate(codec, payload_of(codec, payload, tokens, width), element, tokens, width, out);
  });
}

}  // namespace gputwin::codecs
