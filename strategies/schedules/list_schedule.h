// Orders of passes found by list scheduling: the zero-bubble schedules and Hanayo's waves.
#pragma once

#include "strategies/schedules/table.h"

namespace gputwin {

/// What list scheduling may do.
struct ListRules {
  bool split = true;   // weight gradients are passes of their own
  double memory = 0;   // that a stage may hold, in the unit of PassCosts::kept
  double message = 0;  // time of a message
};

/// Tables in which every stage does, as soon as it is free, the earliest pass it can: backward
/// before forward, later chunks first, forward only within the memory, and a weight gradient where
/// it would otherwise wait. Three things are tried both ways or more: whether waits shorter than a
/// weight gradient are filled, how much memory earlier chunks leave to later ones, and the order of
/// equal forwards; the tables whose longest stage takes least are returned.
///
/// Passes are placed in order of time, and each pass that is placed has what it needs, so the
/// tables can be run. Nor can placing get stuck: where each chunk leaves a place to every later
/// one, the oldest micro-batch can always go on. `costs` by model chunk. O(passes x chunks).
std::vector<StageTable> list_schedule(const Layout& layout, std::int32_t micro_batches,
                                      const std::vector<PassCosts>& costs, const ListRules& rules);

}  // namespace gputwin
