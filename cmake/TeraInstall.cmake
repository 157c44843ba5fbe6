# The installed package: find_package(tera) gives tera::tera. The library is static, so its users need the libraries it
# stands on; tera-config.cmake finds them again.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(tera_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tera)

install(TARGETS tera EXPORT tera-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tera_app RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/tera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(EXISTS ${PROJECT_SOURCE_DIR}/configs)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/tera PATTERN "tests" EXCLUDE)
endif()

install(EXPORT tera-targets NAMESPACE tera:: DESTINATION ${tera_package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tera-config.cmake.in ${PROJECT_BINARY_DIR}/tera-config.cmake
                              INSTALL_DESTINATION ${tera_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tera-config.cmake ${PROJECT_BINARY_DIR}/tera-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/TeraTextLibraries.cmake
        DESTINATION ${tera_package_dir})
