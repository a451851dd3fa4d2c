# Reads scenarios. Apart from the rest of the layer so that its tests need no engine.
find_package(valijson REQUIRED)

# The schemas are compiled in, so that a program moved elsewhere still validates.
foreach(kind scenario model graph cluster)
  set(file ${PROJECT_SOURCE_DIR}/scenarios/schema/${kind}.schema.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  string(TOUPPER ${kind} upper)
  file(READ ${file} GPUTWIN_SCHEMA_${upper})
endforeach()
set(file ${PROJECT_SOURCE_DIR}/hwmodels/links/usable.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
file(READ ${file} GPUTWIN_USABLE_LINKS)
configure_file(scenario_schema_text.cpp.in scenario_schema_text.cpp @ONLY)

add_library(gputwin_scenario STATIC
  ablation.cpp
  graph_reader.cpp
  json_text.cpp
  passes_reader.cpp
  networks/image_networks.cpp
  networks/network_builder.cpp
  networks/networks.cpp
  networks/sequence_networks.cpp
  scenario.cpp
  scenario_document.cpp
  scenario_files.cpp
  scenario_reader.cpp
  scenario_rules.cpp
  scenario_schema.cpp
  set_path.cpp
  suggestion.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/scenario_schema_text.cpp)
add_library(gputwin::scenario ALIAS gputwin_scenario)
target_link_libraries(gputwin_scenario
  PUBLIC gputwin_flags gputwin::core gputwin::hwmodels nlohmann_json::nlohmann_json
  PRIVATE gputwin::strategies fmt::fmt valijson)  # of the strategies: names of offload settings
