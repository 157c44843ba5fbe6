# Ranks with an emulated GPU each: the tests of ../nccl with an emulated NCCL (tools/cuda_on_cpu/nccl.cpp), and the
# tests of that.

add_executable(emulated_nccl_tests nccl_test.cpp nccl_faults_test.cpp nccl_ranks.cpp)
target_include_directories(emulated_nccl_tests PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(emulated_nccl_tests SYSTEM PRIVATE $<TARGET_PROPERTY:cuda_on_cpu,INCLUDE_DIRECTORIES>)
target_link_libraries(emulated_nccl_tests PRIVATE cuda_on_cpu tera_flags GTest::gtest_main)
if(TERA_SANITIZE STREQUAL "thread")
  add_test(NAME CudaOnCpuNccl COMMAND ${tera_fixed_addresses} $<TARGET_FILE:emulated_nccl_tests>)
  set_tests_properties(CudaOnCpuNccl PROPERTIES LABELS emulated_slow TIMEOUT 600 PROCESSORS 4)
else()
  tera_register_suites(emulated_nccl_tests emulated_nccl_tests LABELS emulated PROPERTIES PROCESSORS 4)
endif()
if(NOT TARGET nccl_tests)
  return()
endif()
tera_cuda_on_cpu(nccl_tests_on_cpu nccl_tests)

# emulated_ranks(name label filter ranks...): as tera_nccl_test, but none of them may be skipped. After "srun" the ranks
# find their numbers in Slurm's variables.
function(emulated_ranks name label filter)
  set(how "")
  foreach(ranks ${ARGN})
    if(ranks STREQUAL "srun")
      set(how --srun)
      string(APPEND name Srun)
      continue()
    endif()
    add_test(NAME ${name}.${ranks} COMMAND start_ranks ${how} ${ranks} 1800
                                           $<TARGET_FILE:nccl_tests_on_cpu> --gtest_filter=${filter}
                                           --ranks=${ranks})
    set_tests_properties(${name}.${ranks} PROPERTIES LABELS ${label} TIMEOUT 1800 PROCESSORS 4)
  endforeach()
endfunction()
set(slow_calls "NcclComm.TheHostDoesNotWait")  # 640 MiB are reduced
emulated_ranks(EmulatedNcclComm emulated "-NcclSweep*:${slow_calls}" 2 4)
emulated_ranks(EmulatedNcclComm emulated "NcclComm.Reductions:NcclComm.Exchanges:NcclComm.Splits" srun 3)
emulated_ranks(EmulatedNcclCommSlow emulated_slow ${slow_calls} 2 4)
emulated_ranks(EmulatedNcclSweepFew emulated "NcclSweepFew.*" 2 4)
emulated_ranks(EmulatedNcclSweep emulated_slow "NcclSweep.*" 2 4)

# Jobs: programs with emulated GPUs in the place of the others.
tera_cuda_on_cpu(nccl_failing_on_cpu nccl_failing)
tera_cuda_on_cpu(nccl_runs_tests_on_cpu nccl_runs_tests)
tera_cuda_on_cpu(tera_emulated tera_app)
add_dependencies(nccl_runs_tests_on_cpu tera_emulated nccl_failing_on_cpu)
set(gpus_are_emulated true)
file(READ ../support/paths.cpp.in paths)
string(CONFIGURE "${paths}" paths @ONLY)
string(REPLACE "TARGET_FILE:tera_app" "TARGET_FILE:tera_emulated" paths "${paths}")
string(REPLACE "TARGET_FILE:nccl_failing" "TARGET_FILE:nccl_failing_on_cpu" paths "${paths}")
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/nccl_paths.cpp CONTENT "${paths}")
target_sources(nccl_runs_tests_on_cpu PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/nccl_paths.cpp)
target_include_directories(nccl_runs_tests_on_cpu PRIVATE ${PROJECT_SOURCE_DIR})

# Those that wait for as long as users do, or train for long, are left to the slow ones. Overlap with computation is
# nothing that an emulation shows.
set(slow_runs NcclRuns.GoOnInAnotherLayout NcclRuns.TheSameBitsAgain NcclRuns.AFaultOfOneRankEndsTheJob
              NcclRuns.AStoppedRankEndsTheJob NcclRuns.AStoppedRankZeroEndsTheJob NcclRuns.*UnderMpirun*)
list(JOIN slow_runs ":" slow_runs)
add_test(NAME EmulatedNcclRunsSlow COMMAND nccl_runs_tests_on_cpu
                                           --gtest_filter=${slow_runs})
set_tests_properties(EmulatedNcclRunsSlow PROPERTIES LABELS emulated_slow TIMEOUT 600 PROCESSORS 4)
tera_register_suites(emulated_nccl_runs nccl_runs_tests_on_cpu LABELS emulated SPLIT NcclRuns
                     EXCLUDE "NcclFailure.*:NcclRuns.CallsOverlapWithWork:${slow_runs}" PROPERTIES PROCESSORS 4)
tera_register_suites(emulated_nccl_failures nccl_runs_tests_on_cpu LABELS emulated SPLIT NcclFailure WAITS .
                     EXCLUDE "NcclRuns.*")
