// A double of the calls of CUDA, cuBLASLt and NCCL that the CUDA backend makes, put behind it when
// tests are linked. Memory is the processor's; streams are queues whose heads run in a seeded
// random order whenever somebody asks whether something has ended; events, products, collectives
// and messages do what the libraries document. Kernels run on the processor (kernels_on_cpu.h).
// Calls are kept in order, and fail or hang where a test asks. It times nothing and proves nothing
// about GPUs: neither speed, nor what a GPU rounds, nor what the libraries really do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gputwin::cuda_double {

struct Script {
  int devices = 2;
  std::string failing = {};  // this call fails, from the `failing_at`-th on
  int failing_at = 1;
  bool hung = false;                                // nothing on any stream moves
  int hung_stream = 0;                              // the n-th stream made moves no more; 0: none
  std::string hung_at = {};                         // … from its first work of this name on
  bool member_lost = false;                         // NCCL reports an error of a member
  std::uint64_t seed = 1;                           // of the order in which streams move
  std::int64_t free_bytes = std::int64_t{1} << 40;  // of each GPU
};

/// Forgets all calls, streams and objects.
void start(const Script& script);
/// Calls so far, in order, by name; those that ask (cudaEventQuery, …) are left out.
std::vector<std::string> calls();
/// Objects made and not given back.
int alive();
/// What was enqueued, in order of issue: which stream (in order of their making, from 1) and what:
/// "record", "wait", "copy", "host", "product", the name of a kernel, "AllReduce #3", …, "messages
/// 2".
struct Issued {
  int stream = 0;
  std::string what;
};
std::vector<Issued> issued();
/// What no library would have borne: members that disagree, a call for a stream of another GPU, a
/// stream that is destroyed with work in it. Empty: all was well.
std::vector<std::string> wrongs();

}  // namespace gputwin::cuda_double
