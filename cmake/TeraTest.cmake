# tera_test(name source... LABELS label... [EXCLUDE filter] [SPLIT suite...] [NOT_SANITIZED suite...] [WAITS suite...]
#           [PROPERTIES property value ...])
#
# One test program, registered with CTest suite by suite: "unit_tests.DataSampler" runs all cases of DataSampler in one
# process, so that 1,500 cases do not start 1,500 processes. Suites named in SPLIT are registered case by case, where
# one process would be the longest of the whole run. EXCLUDE is the negative part of a GoogleTest filter.
#
# Suites whose names end in Slow have the label slow instead of the given ones, with the time that it takes: they run with
# `make slow`. In a build with sanitizers, so do those in NOT_SANITIZED (patterns; "." for all), of which such a build
# learns nothing that others do not tell it: numbers, and faults of processes that are slow to come.
#
# PROCESSORS counts halves of a core: `make test` runs `ctest -j` with twice the number of cores. Suites in WAITS, whose
# threads or processes mostly wait, take one half.
#
# The suites are known when the program is built: a script (this file, in script mode) asks the program and writes them
# into a file that CTest includes.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_policy(VERSION 3.25)
  execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE failed
                  ERROR_VARIABLE errors TIMEOUT 60)
  if(failed)
    message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: ${failed}\n${errors}")
  endif()
  string(REPLACE "," ";" SPLIT "${SPLIT}")

  if(EXCLUDE)
    set(exclude "-${EXCLUDE}")
  endif()

  set(text "")
  function(register test filter suite)
    if(EXCLUDE)
      execute_process(COMMAND ${PROGRAM} --gtest_list_tests "--gtest_filter=${filter}${exclude}" OUTPUT_VARIABLE found)
      if(NOT found MATCHES "\n  ")
        return()
      endif()
    endif()
    set(labels "LABELS \"${LABELS}\" TIMEOUT 300")
    if(suite MATCHES "Slow$" OR (NOT_SANITIZED AND suite MATCHES "${NOT_SANITIZED}"))
      set(labels "LABELS slow TIMEOUT 3600")
    endif()
    set(halves 2)
    if(WAITS AND suite MATCHES "${WAITS}")
      set(halves 1)
    endif()
    string(APPEND text "add_test([==[${NAME}.${test}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${filter}${exclude}]==] "
                       "--gtest_brief=1)\n"
                       "set_tests_properties([==[${NAME}.${test}]==] PROPERTIES ${labels} PROCESSORS ${halves} ${PROPERTIES})\n")
    set(text "${text}" PARENT_SCOPE)
  endfunction()

  string(REGEX REPLACE "[\r\n]+" ";" listing "${listing}")
  foreach(line IN LISTS listing)
    string(REGEX REPLACE " *#.*" "" line "${line}")
    if(line MATCHES "^([^ ]+)\\.$")
      set(suite ${CMAKE_MATCH_1})
      if(NOT suite IN_LIST SPLIT)
        register(${suite} "${suite}.*" ${suite})
      endif()
    elseif(line MATCHES "^  ([^ ]+)$" AND suite IN_LIST SPLIT)
      register(${suite}.${CMAKE_MATCH_1} "${suite}.${CMAKE_MATCH_1}" ${suite})
    endif()
  endforeach()
  file(WRITE ${OUTPUT} "${text}")
  return()
endif()

set(tera_test_script ${CMAKE_CURRENT_LIST_FILE})

# tera_register_suites(name program-target ...): the registration alone, for a program that exists.
function(tera_register_suites name program)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "EXCLUDE" "LABELS;SPLIT;NOT_SANITIZED;WAITS;PROPERTIES")
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  list(JOIN arg_LABELS "\\;" labels)
  list(JOIN arg_SPLIT "," split)
  set(not_sanitized "")
  if(TERA_SANITIZE)
    list(JOIN arg_NOT_SANITIZED "|" not_sanitized)
  endif()
  list(JOIN arg_WAITS "|" waits)
  set(properties "")
  foreach(property IN LISTS arg_PROPERTIES)
    string(APPEND properties " \"${property}\"")
  endforeach()
  add_custom_command(TARGET ${program} POST_BUILD BYPRODUCTS ${output}
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DPROGRAM=$<TARGET_FILE:${program}> -DOUTPUT=${output} "-DLABELS=${labels}"
            "-DEXCLUDE=${arg_EXCLUDE}" "-DNOT_SANITIZED=${not_sanitized}" -DSPLIT=${split} "-DWAITS=${waits}"
            "-DPROPERTIES=${properties}" -P ${tera_test_script}
    VERBATIM)
  file(WRITE ${output}.include "if(EXISTS \"${output}\")\n  include(\"${output}\")\nelse()\n"
                               "  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${output}.include)
endfunction()

function(tera_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "EXCLUDE" "LABELS;SPLIT;NOT_SANITIZED;WAITS;PROPERTIES")
  tera_test_program(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE GTest::gtest_main)
  tera_register_suites(${name} ${name} EXCLUDE "${arg_EXCLUDE}" LABELS ${arg_LABELS} SPLIT ${arg_SPLIT}
                       NOT_SANITIZED ${arg_NOT_SANITIZED} WAITS ${arg_WAITS} PROPERTIES ${arg_PROPERTIES})
endfunction()

# tera_test_program(name source...): a program of tests that is registered by other means, or has a main of its own.
set(tera_test_batch 16)
function(tera_test_program name)
  add_executable(${name})
  target_link_libraries(${name} PRIVATE tera_test_support GTest::gtest)
  set(batch "")
  foreach(source IN LISTS ARGN)
    if(TERA_UNITY AND source MATCHES "_(test|cases)\\.cpp$")
      list(APPEND batch ${source})
    else()  # a main, or functions that a header declares
      target_sources(${name} PRIVATE ${source})
    endif()
  endforeach()
  tera_add_batches(${name} ${batch})
endfunction()

# Most of the seconds that a test source takes go into headers that all of them include, so several are compiled as one.
# Each stands in a namespace of its own, in which the namespaces that it opens (tera, tera::test, tera::cuda ...) see
# those of the library: helpers of two files may have the same name. All headers come first, since they belong outside.
# A batch names files relative to the repository: its object is then the same in every checkout, and a compiler cache
# finds it.
function(tera_add_batches name)
  set(number 0)
  while(ARGN)
    set(includes "")
    set(opened "")
    set(bodies "")
    foreach(count RANGE 1 ${tera_test_batch})
      if(NOT ARGN)
        break()
      endif()
      list(POP_FRONT ARGN source)
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
      file(STRINGS ${source} lines REGEX "^#include ")
      list(APPEND includes ${lines})
      cmake_path(GET source STEM stem)
      file(STRINGS ${source} spaces REGEX "^namespace [a-z_:]+ {")
      list(TRANSFORM spaces REPLACE "^namespace ([a-z_:]+) {.*" "\\1")
      list(REMOVE_DUPLICATES spaces)
      list(APPEND opened ${spaces})
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(APPEND bodies "\nnamespace in_${stem} {\n")
      tera_see_library("${spaces}" seen)
      string(APPEND bodies "${seen}#include \"${source}\"\n}\n")
    endforeach()
    list(REMOVE_DUPLICATES includes)
    list(JOIN includes "\n" includes)
    list(REMOVE_DUPLICATES opened)
    list(TRANSFORM opened REPLACE "(.+)" "namespace \\1 {}\n")
    list(JOIN opened "" opened)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_${number}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${includes}\n\n${opened}${bodies}" @ONLY)
    target_sources(${name} PRIVATE ${file})
    math(EXPR number "${number} + 1")
  endwhile()
endfunction()

# Lines by which each of these namespaces, and those around it, sees the one of that name outside.
function(tera_see_library spaces result)
  set(all "")
  foreach(space IN LISTS spaces)
    while(space)
      list(APPEND all ${space})
      if(NOT space MATCHES "::")
        break()
      endif()
      string(REGEX REPLACE "::[^:]*$" "" space ${space})
    endwhile()
  endforeach()
  list(REMOVE_DUPLICATES all)
  set(text "")
  foreach(space IN LISTS all)
    string(APPEND text "namespace ${space} {\nusing namespace ::${space};\n}\n")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()
