# What `cmake --install` puts where: the program and its data, and what a plugin is built with
# (strategies/PLUGINS.md).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/gputwin)
set_target_properties(gputwin_flags PROPERTIES EXPORT_NAME flags)
install(TARGETS gputwin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY scenarios hwmodels DESTINATION ${CMAKE_INSTALL_DATADIR}/gputwin
  FILES_MATCHING PATTERN "*.json")

install(TARGETS gputwin_core gputwin_flags EXPORT gputwin
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY sim/core DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gputwin/sim
  FILES_MATCHING PATTERN "*.h")
install(FILES strategies/plugin.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gputwin/strategies)
install(FILES strategies/schedules/table.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gputwin/strategies/schedules)
install(EXPORT gputwin NAMESPACE gputwin:: FILE gputwin-targets.cmake DESTINATION ${package})
configure_package_config_file(sim/gputwin-config.cmake.in
  ${PROJECT_BINARY_DIR}/gputwin-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gputwin-config-version.cmake
  COMPATIBILITY ExactVersion)
install(FILES ${PROJECT_BINARY_DIR}/gputwin-config.cmake
  ${PROJECT_BINARY_DIR}/gputwin-config-version.cmake DESTINATION ${package})
