// What a release of a software stack takes for a mixture of experts, over what the models of its
// kernels and collectives say.
//
// The kernels around experts changed fast while the rest of a stack did not: products launched one
// by one, then as one kernel; rows permuted, sent and sorted by kernels apart, then while they are
// sent (DeepEP, HybridEP). So these factors have files of their own, hwmodels/stacks/experts, one
// per release, chosen by the longest name that the job's stack starts with.
#pragma once

#include <filesystem>
#include <string>

namespace gputwin {

struct ExpertFactors {
  double products = 1.0;  // grouped GEMMs
  double rows = 1.0;      // kernels that route, move or weigh rows of experts
  double exchange = 1.0;  // all-to-all
};

/// The factors of the job's stack `wanted`; ones if no file is for it. Throws InputError as
/// ConstantsFile does.
ExpertFactors choose_experts(const std::filesystem::path& directory, const std::string& wanted);

}  // namespace gputwin
