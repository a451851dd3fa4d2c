#include "sim/cli/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> count{0};

}  // namespace

// The array and nothrow forms of the library end here too. Inlined, the pair would look mismatched
// to the compiler.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  if (void* const block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}

[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace gputwin::cli {

std::int64_t heap_allocations() { return count.load(std::memory_order_relaxed); }

}  // namespace gputwin::cli
