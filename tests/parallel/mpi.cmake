# Tests whose ranks are processes. There are more of them than cores, so all must yield; and every test has an end.
if(NOT MPIEXEC_EXECUTABLE)
  message(STATUS "MPI: no mpirun, so ranks as processes are not tested")
  return()
endif()
set(mpirun ${MPIEXEC_EXECUTABLE})
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE mpirun_version ERROR_QUIET)
if(mpirun_version MATCHES "Open MPI|OpenRTE")
  # Without single copy: reading another process's memory is forbidden in many containers.
  list(APPEND mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1
                     --mca btl_vader_single_copy_mechanism none --mca btl_base_warn_component_unused 0)
endif()

set(mpi_environment ASAN_OPTIONS=detect_leaks=0)  # MPI libraries keep what they took until the process ends

function(tera_mpi_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tera_test_support)
endfunction()

# tera_mpi_test(name program ranks...): the program under mpirun, once for each number of ranks.
function(tera_mpi_test name program)
  foreach(ranks ${ARGN})
    add_test(NAME ${name}.${ranks} COMMAND ${mpirun} -n ${ranks} $<TARGET_FILE:${program}>)
    set_tests_properties(${name}.${ranks} PROPERTIES LABELS mpi TIMEOUT 120 PROCESSORS 2
                         ENVIRONMENT "${mpi_environment}")
  endforeach()
endfunction()

tera_mpi_program(mpi_comm_test mpi_comm_test.cpp mpi_main.cpp ../support/count_allocations.cpp)
tera_mpi_test(MpiComm mpi_comm_test 1 2 3 4 8)

tera_mpi_program(mpi_sweep_test mpi_sweep_test.cpp mpi_main.cpp ../support/count_allocations.cpp)
tera_mpi_test(MpiSweep mpi_sweep_test 2 4 8)

tera_mpi_program(mpi_failing mpi_failing.cpp)
add_executable(mpi_failure_test mpi_failure_test.cpp)
target_link_libraries(mpi_failure_test PRIVATE tera_flags fmt::fmt GTest::gtest GTest::gtest_main)
list(JOIN mpirun " " mpirun_line)
target_compile_definitions(mpi_failure_test PRIVATE TERA_MPIRUN="${mpirun_line}"
                                                    TERA_MPI_FAILING="$<TARGET_FILE:mpi_failing>")
add_dependencies(mpi_failure_test mpi_failing)
gtest_discover_tests(mpi_failure_test DISCOVERY_TIMEOUT 60 PROPERTIES LABELS mpi TIMEOUT 120
                     ENVIRONMENT "${mpi_environment}")

add_executable(mpi_runs_test mpi_runs_test.cpp)
target_link_libraries(mpi_runs_test PRIVATE tera_flags fmt::fmt GTest::gtest GTest::gtest_main)
target_include_directories(mpi_runs_test PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(mpi_runs_test PRIVATE TERA_MPIRUN="${mpirun_line}" TERA_PROGRAM="$<TARGET_FILE:tera_app>"
                                                 TERA_TEST_CONFIGS="${PROJECT_SOURCE_DIR}/configs/tests")
add_dependencies(mpi_runs_test tera_app)
gtest_discover_tests(mpi_runs_test DISCOVERY_TIMEOUT 60 PROPERTIES LABELS mpi TIMEOUT 120
                     ENVIRONMENT "${mpi_environment}")
