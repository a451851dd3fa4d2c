#include "hwmodels/memory/caching_allocator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <utility>

#include "sim/core/check.h"

namespace gputwin {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kMinBlock = 512;            // kMinBlockSize
constexpr std::int64_t kSmall = kMiB;              // kSmallSize
constexpr std::int64_t kSmallSegment = 2 * kMiB;   // kSmallBuffer
constexpr std::int64_t kLargeSegment = 20 * kMiB;  // kLargeBuffer
constexpr std::int64_t kOwnSegment = 10 * kMiB;    // kMinLargeAlloc
constexpr std::int64_t kRoundLarge = 2 * kMiB;
// Addresses of one expandable segment: whole pages, and more than any device holds.
constexpr std::int64_t kExpandableRange = 50'000 * kLargeSegment;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// get_allocation_size
std::int64_t segment_size(std::int64_t block) {
  if (block <= kSmall) return kSmallSegment;
  return block < kOwnSegment ? kLargeSegment : round_up(block, kRoundLarge);
}

std::string amount(Bytes bytes) {
  constexpr std::array<const char*, 3> kUnits{"KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes.value) / 1024.0;
  std::size_t unit = 0;
  for (; unit + 1 < kUnits.size() && value >= 1024.0; ++unit) value /= 1024.0;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace

std::int64_t CachingAllocator::Pool::page() const { return small ? kSmallSegment : kLargeSegment; }

CachingAllocator::CachingAllocator(const AllocatorOptions& options, Bytes limit)
    : options_(options),
      limit_(limit.value),
      max_split_(options.max_split_size.value > 0 ? options.max_split_size.value
                                                  : std::numeric_limits<std::int64_t>::max()) {}

Bytes CachingAllocator::rounded(Bytes request) const {
  const std::int64_t size = std::max(kMinBlock, request.value);
  const std::int64_t divisions = options_.roundup_power2_divisions;
  if (divisions <= 1 || size <= kMinBlock * divisions) return Bytes(round_up(size, kMinBlock));
  const auto floor = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)));
  return Bytes(round_up(size, floor / divisions));
}

std::uint32_t CachingAllocator::pool_of(std::int64_t size, std::uint32_t stream) {
  const bool small = size <= kSmall;
  for (std::uint32_t p = 0; p < pools_.size(); ++p) {
    if (pools_[p].small == small && pools_[p].stream == stream) return p;
  }
  pools_.push_back({.stream = stream, .small = small, .free = {}, .unmapped = {}});
  return static_cast<std::uint32_t>(pools_.size() - 1);
}

CachingAllocator::Handle CachingAllocator::make_block(std::uint32_t pool, std::int64_t address,
                                                      std::int64_t size) {
  Handle handle = static_cast<Handle>(blocks_.size());
  if (unused_.empty()) {
    blocks_.emplace_back();
  } else {
    handle = unused_.back();
    unused_.pop_back();
    blocks_[handle] = Block{};
  }
  blocks_[handle].address = address;
  blocks_[handle].size = size;
  blocks_[handle].pool = pool;
  return handle;
}

void CachingAllocator::drop_block(Handle block) {
  Block& b = blocks_[block];
  if (b.before != kNone) blocks_[b.before].after = b.after;
  if (b.after != kNone) blocks_[b.after].before = b.before;
  unused_.push_back(block);
}

void CachingAllocator::insert_free(Handle block) {
  const Block& b = blocks_[block];
  std::vector<Free>& list = pools_[b.pool].free;
  const auto at = std::lower_bound(list.begin(), list.end(), b, [](const Free& f, const Block& x) {
    return f.size != x.size ? f.size < x.size : f.address < x.address;
  });
  list.insert(at, {b.size, b.address, block});
}

void CachingAllocator::erase_free(Handle block) {
  const Block& b = blocks_[block];
  std::vector<Free>& list = pools_[b.pool].free;
  const auto at = std::lower_bound(list.begin(), list.end(), b, [](const Free& f, const Block& x) {
    return f.size != x.size ? f.size < x.size : f.address < x.address;
  });
  GPUTWIN_CHECK(at != list.end() && at->block == block, "a free block is listed");
  list.erase(at);
}

void CachingAllocator::insert_unmapped(Handle block) {
  std::vector<Handle>& list = pools_[blocks_[block].pool].unmapped;
  const auto at = std::lower_bound(list.begin(), list.end(), block, [&](Handle a, Handle b) {
    return blocks_[a].address < blocks_[b].address;
  });
  list.insert(at, block);
}

void CachingAllocator::erase_unmapped(Handle block) {
  std::erase(pools_[blocks_[block].pool].unmapped, block);
}

// What a free block of an expandable segment could become without moving.
std::int64_t CachingAllocator::size_to_grow(Handle block) const {
  const Block& b = blocks_[block];
  const bool grows = b.after != kNone && !blocks_[b.after].mapped;
  return b.size + (grows ? blocks_[b.after].size : 0);
}

// get_free_block
CachingAllocator::Handle CachingAllocator::best_fit(std::uint32_t pool, std::int64_t size) {
  std::vector<Free>& list = pools_[pool].free;
  auto at = std::lower_bound(list.begin(), list.end(), size,
                             [](const Free& f, std::int64_t s) { return f.size < s; });
  if (at == list.end()) return kNone;
  if (blocks_[at->block].expandable) {
    // The block at the end of a segment counts with what it can grow to.
    for (auto next = at + 1;
         next != list.end() && size_to_grow(next->block) < size_to_grow(at->block); ++next) {
      at = next;
    }
  }
  if (size < max_split_ && at->size >= max_split_) return kNone;
  if (size >= max_split_ && at->size >= size + kLargeSegment) return kNone;
  const Handle block = at->block;
  list.erase(at);
  return block;
}

bool CachingAllocator::should_split(const Block& block, std::int64_t size) const {
  const std::int64_t remaining = block.size - size;
  if (pools_[block.pool].small || options_.expandable_segments) return remaining >= kMinBlock;
  return size < max_split_ && remaining > kSmall;
}

// Cuts `block` after `size`; the rest is a block of the same kind, in no list.
void CachingAllocator::split(Handle block, std::int64_t size) {
  const Block cut = blocks_[block];
  const Handle rest = make_block(cut.pool, cut.address + size, cut.size - size);
  Block& r = blocks_[rest];
  r.mapped = cut.mapped;
  r.expandable = cut.expandable;
  r.before = block;
  r.after = cut.after;
  if (cut.after != kNone) blocks_[cut.after].before = rest;
  blocks_[block].after = rest;
  blocks_[block].size = size;
}

CachingAllocator::Handle CachingAllocator::hand_out(Handle block, std::int64_t size) {
  if (should_split(blocks_[block], size)) {
    split(block, size);
    insert_free(blocks_[block].after);
  }
  Block& b = blocks_[block];
  b.allocated = true;
  figures_.allocated += Bytes(b.size);
  if (figures_.allocated > figures_.peak_allocated) {
    figures_.peak_allocated = figures_.allocated;
    figures_.reserved_at_peak = figures_.reserved;
  }
  return block;
}

bool CachingAllocator::mergeable(Handle block, Handle neighbour) const {
  if (neighbour == kNone) return false;
  const Block& n = blocks_[neighbour];
  return !n.allocated && n.users.empty() && n.mapped == blocks_[block].mapped;
}

// Joins a block that is in no list with its free neighbours (mapped or unmapped, as itself).
void CachingAllocator::merge(Handle block) {
  const auto unlist = [&](Handle b) {
    if (blocks_[b].mapped) {
      erase_free(b);
    } else {
      erase_unmapped(b);
    }
  };
  if (const Handle before = blocks_[block].before; mergeable(block, before)) {
    unlist(before);
    blocks_[block].address = blocks_[before].address;
    blocks_[block].size += blocks_[before].size;
    drop_block(before);
  }
  if (const Handle after = blocks_[block].after; mergeable(block, after)) {
    unlist(after);
    blocks_[block].size += blocks_[after].size;
    drop_block(after);
  }
}

void CachingAllocator::release(Handle block) {
  blocks_[block].allocated = false;
  blocks_[block].users.clear();
  merge(block);
  insert_free(block);
}

void CachingAllocator::note_reserved() {
  figures_.peak_reserved = std::max(figures_.peak_reserved, figures_.reserved);
  figures_.peak_segments = std::max(figures_.peak_segments, figures_.segments);
}

bool CachingAllocator::take(std::int64_t bytes) {
  if (limit_ > 0 && figures_.reserved.value + bytes > limit_) return false;
  figures_.reserved += Bytes(bytes);
  return true;
}

CachingAllocator::Handle CachingAllocator::new_segment(std::uint32_t pool, std::int64_t size) {
  if (options_.expandable_segments) return grow(pool, size);
  const std::int64_t bytes = segment_size(size);
  if (!take(bytes)) return kNone;
  ++figures_.segments;
  note_reserved();
  const Handle block = make_block(pool, next_address_, bytes);
  next_address_ += bytes;
  return block;
}

// find_expandable_block: the lowest place with `size` bytes of free and unmapped addresses.
CachingAllocator::Handle CachingAllocator::place_to_grow(std::uint32_t pool, std::int64_t size) {
  const auto available = [&](Handle b) {
    return b != kNone && !blocks_[b].allocated && blocks_[b].users.empty();
  };
  for (Handle place : pools_[pool].unmapped) {
    if (available(blocks_[place].before)) place = blocks_[place].before;
    std::int64_t bytes = 0;
    for (Handle b = place; bytes < size && available(b); b = blocks_[b].after) {
      bytes += blocks_[b].size;
    }
    if (bytes >= size) return place;
  }
  const Handle segment = make_block(pool, next_address_, kExpandableRange);
  next_address_ += kExpandableRange;
  blocks_[segment].mapped = false;
  blocks_[segment].expandable = true;
  insert_unmapped(segment);
  ++figures_.segments;
  return segment;
}

// map_block: pages for the first `size` bytes; the block that then holds them, free and listed.
CachingAllocator::Handle CachingAllocator::map(Handle block, std::int64_t size) {
  const std::int64_t bytes = round_up(size, pools_[blocks_[block].pool].page());
  if (!take(bytes)) return kNone;
  erase_unmapped(block);
  if (bytes < blocks_[block].size) {
    split(block, bytes);
    insert_unmapped(blocks_[block].after);
  }
  blocks_[block].mapped = true;
  merge(block);
  insert_free(block);
  note_reserved();
  return block;
}

// try_allocate_expandable_block
CachingAllocator::Handle CachingAllocator::grow(std::uint32_t pool, std::int64_t size) {
  Handle block = place_to_grow(pool, size);
  if (!blocks_[block].mapped) {
    block = map(block, std::min(blocks_[block].size, size));
    if (block == kNone) return kNone;
  }
  while (blocks_[block].size < size) {
    const Handle next = blocks_[block].after;
    block = map(next, std::min(size - blocks_[block].size, blocks_[next].size));
    if (block == kNone) return kNone;
  }
  erase_free(block);
  return block;
}

// unmap_block: gives back the whole pages inside a free block.
void CachingAllocator::unmap(Handle block) {
  const std::int64_t page = pools_[blocks_[block].pool].page();
  const std::int64_t begin = round_up(blocks_[block].address, page);
  const std::int64_t end = (blocks_[block].address + blocks_[block].size) / page * page;
  if (begin >= end) return;
  erase_free(block);
  if (begin > blocks_[block].address) {
    split(block, begin - blocks_[block].address);
    insert_free(block);
    block = blocks_[block].after;
  }
  if (end < blocks_[block].address + blocks_[block].size) {
    split(block, end - blocks_[block].address);
    insert_free(blocks_[block].after);
  }
  figures_.reserved -= Bytes(end - begin);
  blocks_[block].mapped = false;
  merge(block);
  insert_unmapped(block);
}

void CachingAllocator::give_back(Handle segment) {
  figures_.reserved -= Bytes(blocks_[segment].size);
  --figures_.segments;
  erase_free(segment);
  drop_block(segment);
}

// release_available_cached_blocks: with max_split_size, large unused segments go first.
bool CachingAllocator::release_oversized(std::uint32_t pool, std::int64_t size) {
  if (max_split_ == std::numeric_limits<std::int64_t>::max()) return false;
  const std::int64_t wanted = std::max(size, max_split_);
  std::vector<Free>& list = pools_[pool].free;
  const auto whole = [&](Handle b) {
    return !blocks_[b].expandable && blocks_[b].before == kNone && blocks_[b].after == kNone;
  };
  const auto fits = std::find_if(list.begin(), list.end(),
                                 [&](const Free& f) { return f.size >= wanted && whole(f.block); });
  if (fits != list.end()) {
    give_back(fits->block);
    return true;
  }
  std::int64_t released = 0;
  for (std::size_t i = list.size(); i-- > 0 && released < wanted && list[i].size >= max_split_;) {
    const Free f = list[i];
    if (!whole(f.block)) continue;
    give_back(f.block);
    released += f.size;
  }
  return released >= wanted;
}

void CachingAllocator::empty_cache() {
  for (const Handle block : std::exchange(pending_, {})) release(block);
  for (Pool& pool : pools_) {
    const std::vector<Free> list = pool.free;
    for (const Free& f : list) {
      const Block& b = blocks_[f.block];
      if (b.expandable) {
        unmap(f.block);
      } else if (b.before == kNone && b.after == kNone) {
        give_back(f.block);
      }
    }
  }
}

CachingAllocator::Handle CachingAllocator::allocate(Bytes bytes, std::uint32_t stream) {
  const std::int64_t size = rounded(bytes).value;
  const std::uint32_t pool = pool_of(size, stream);
  Handle block = best_fit(pool, size);
  if (block == kNone) block = new_segment(pool, size);
  if (block == kNone && release_oversized(pool, size)) block = new_segment(pool, size);
  if (block == kNone) {
    ++figures_.retries;
    empty_cache();
    block = new_segment(pool, size);
  }
  return block == kNone ? kNone : hand_out(block, size);
}

void CachingAllocator::free(Handle block) {
  GPUTWIN_CHECK(block < blocks_.size() && blocks_[block].allocated, "only live blocks are freed");
  figures_.allocated -= Bytes(blocks_[block].size);
  if (blocks_[block].users.empty()) {
    release(block);
    return;
  }
  blocks_[block].allocated = false;
  pending_.push_back(block);
}

void CachingAllocator::record_stream(Handle block, std::uint32_t stream) {
  std::vector<std::uint32_t>& users = blocks_[block].users;
  if (stream == pools_[blocks_[block].pool].stream) return;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
}

void CachingAllocator::complete(std::uint32_t stream) {
  std::vector<Handle> waiting;
  for (const Handle block : std::exchange(pending_, {})) {
    std::erase(blocks_[block].users, stream);
    if (blocks_[block].users.empty()) {
      release(block);
    } else {
      waiting.push_back(block);
    }
  }
  pending_ = std::move(waiting);
}

std::string out_of_memory_text(Bytes request, const AllocatorFigures& at, Bytes capacity,
                               Bytes other) {
  const Bytes used = at.reserved + other;
  return "CUDA out of memory. Tried to allocate " + amount(request) +
         ". GPU 0 has a total capacity of " + amount(capacity) + " of which " +
         amount(std::max(Bytes(0), capacity - used)) +
         " is free. Including non-PyTorch memory, this process has " + amount(used) +
         " memory in use. Of the allocated memory " + amount(at.allocated) +
         " is allocated by PyTorch, and " + amount(at.reserved - at.allocated) +
         " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
         "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
}

}  // namespace gputwin
