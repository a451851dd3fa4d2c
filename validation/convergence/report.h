// Curves of the convergence experiment as a table, as JSON and as a picture.
#pragma once

#include <string>
#include <vector>

#include "validation/convergence/experiment.h"

namespace gputwin::convergence {

/// One codec against the uncompressed runs of the same seeds.
struct Compared {
  std::string codec;
  std::size_t seeds = 0;
  double share = 0, error = 0;          // see Curve; means over the seeds
  double final_loss = 0, held_out = 0;  // means
  double change = 0,
         change_deviation = 0;  // of the held-out loss, by seed: mean and standard deviation
};

/// In the order of their first curves; the first codec is the one compared with. Only seeds that
/// this one has too are used.
std::vector<Compared> compare(const std::vector<Curve>& curves);

std::string convergence_table(const Experiment& e, const std::vector<Curve>& curves);
std::string convergence_json(const Experiment& e, const std::vector<Curve>& curves);

/// Loss against steps: a line per codec, mean over seeds, smoothed over a twentieth of the steps.
std::string convergence_svg(const Experiment& e, const std::vector<Curve>& curves);

}  // namespace gputwin::convergence
