# What a run leaves behind: report, result.json, progress. Apart from the rest of the layer so that its tests
# need neither scenarios nor an engine.
add_library(gputwin_report STATIC
  report.cpp
  result_json.cpp
  terminal_progress.cpp
)
add_library(gputwin::report ALIAS gputwin_report)
target_link_libraries(gputwin_report
  PUBLIC gputwin_flags gputwin::core
  PRIVATE gputwin::trace fmt::fmt nlohmann_json::nlohmann_json
)
