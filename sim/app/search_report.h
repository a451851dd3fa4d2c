// What a search found, for a person and for programs.
#pragma once

#include <string>

#include "sim/app/search.h"

namespace gputwin {

std::string search_report(const SearchResult& result, const Scenario& scenario);
/// {"schema", "scenario", "stopped", "looked_at", "feasible", "best": [layout, closed_form_s,
/// simulated_s, memory …], "pareto", "given", "rejected": [{reason, layouts, example, …}]}
std::string search_json(const SearchResult& result, const Scenario& scenario);

}  // namespace gputwin
