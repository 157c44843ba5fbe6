# Writes BUILD/generated/build_info.cpp with version, commit and compiler. Run at every build (a commit may have been
# made since the configuration), but the file changes only when its contents do.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit "")
  find_package(Git QUIET)
  if(GIT_FOUND)
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --abbrev=12 --dirty --exclude=*
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  configure_file(${SOURCE}/cmake/build_info.cpp.in ${OUTPUT} @ONLY)
  return()
endif()

# tera_build_info(target): compiles the file into the target. Only programs take it: a new commit then relinks them and
# not every test.
function(tera_build_info target)
  set(output ${PROJECT_BINARY_DIR}/generated/build_info.cpp)
  add_custom_target(tera_build_info BYPRODUCTS ${output}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${output} -Dversion=${PROJECT_VERSION}
            "-Dcompiler=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -Dbuild_type=${CMAKE_BUILD_TYPE}
            -Dsanitize=${TERA_SANITIZE} -Dprocessor=${CMAKE_SYSTEM_PROCESSOR}
            -P ${PROJECT_SOURCE_DIR}/cmake/TeraVersion.cmake
    COMMENT "Noting version and commit" VERBATIM)
  add_dependencies(${target} tera_build_info)
  target_sources(${target} PRIVATE ${output})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()
