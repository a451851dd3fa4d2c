// Measured collectives of tables: which curves they belong to, and what the models say about them.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "hwmodels/collectives/collective_row.h"
#include "hwmodels/collectives/curves.h"
#include "sim/core/cluster.h"
#include "sim/core/cost.h"

namespace gputwin {

/// The kind of a table's word; throws InputError for words without one.
OpKind collective_kind(const std::string& word);

/// File of curves, without its ending, to which a row belongs: "curves/h100-sxm-80gb" for the node
/// of a device, "networks/NAME" for a system of its own.
std::string curves_of(const CollectiveRow& row);

/// Predicts rows from their configuration: the system's cluster file, the device's curves, and the
/// curves of the system's network where they were measured.
class CollectivePredictor {
 public:
  /// `data` holds hwmodels, `systems` the cluster files of the systems (validation/ops/systems).
  CollectivePredictor(std::filesystem::path data, std::filesystem::path systems);
  ~CollectivePredictor();

  /// Time in `time`, start-up and transfer in the terms, 80 % interval. A text where a row cannot
  /// be predicted (unknown system, more ranks than a node has, impossible collective).
  std::variant<Cost, std::string> predict(const CollectiveRow& row);

 private:
  struct World;
  World& world_of(const CollectiveRow& row);

  std::filesystem::path data_, systems_;
  std::map<std::string, std::unique_ptr<World>> worlds_;  // by system, nodes and network
};

}  // namespace gputwin
