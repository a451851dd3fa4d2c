// A double of the calls of CUDA, cuBLASLt and NCCL that the CUDA backend makes, put behind it when
// tests are linked. It keeps the order of calls, and fails or hangs where a test asks. It times
// nothing, computes nothing and proves nothing about GPUs.
#pragma once

#include <string>
#include <vector>

namespace gputwin::cuda_double {

struct Script {
  int devices = 2;
  std::string failing = {};  // this call fails
  bool hung = false;         // events are never done
  bool member_lost = false;  // NCCL reports an error of a member
};

/// Forgets all calls and objects.
void start(const Script& script);
/// Calls so far, in order, by name; those that ask (cudaEventQuery, …) are left out.
std::vector<std::string> calls();
/// Objects made and not given back.
int alive();

}  // namespace gputwin::cuda_double
