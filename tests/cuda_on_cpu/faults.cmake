# Faults planted into kernels, each to be found by the mode named for it. What a kernel library has in the place of one
# right source: tera_planted_fault(NAME FILE file OLD text NEW text IN mode... TESTS filter [PROGRAM program]
# [SAYS regex]).
# A sanitizer has to name the kernel's file. The same cases pass in the same mode without a fault: PlantedFault.none.
#
# Modes of a plain build: forward, reverse, random (orders of threads and blocks). Under a sanitizer: address, thread,
# strict (of a warp's functions only __syncwarp orders memory). OLD must occur in FILE once. KERNEL names the .cu file
# to compile where FILE is a header.
set(tera_planted_plain forward reverse random)
set(tera_planted_address address)
set(tera_planted_thread thread strict)

# Copies FILE with the fault into `folder`, where its like is found before the right one.
function(tera_plant folder file old new)
  set(path tera/backend/cuda/kernels/${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${path})
  file(READ ${PROJECT_SOURCE_DIR}/${path} text)
  string(REPLACE "${old}" "${new}" planted "${text}")
  string(LENGTH "${old}" old_length)
  string(LENGTH "${new}" new_length)
  string(LENGTH "${text}" length)
  string(LENGTH "${planted}" planted_length)
  math(EXPR expected "${length} + ${new_length} - ${old_length}")
  if(planted STREQUAL text OR NOT planted_length EQUAL expected)
    message(FATAL_ERROR "a fault to be planted in ${path} is not there once: ${old}")
  endif()
  file(CONFIGURE OUTPUT ${folder}/${path} CONTENT "${planted}" @ONLY)
endfunction()

function(tera_planted_fault name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILE;KERNEL;OLD;NEW;TESTS;SAYS;PROGRAM" "IN;ARGUMENTS")
  if(TERA_SANITIZE)
    set(modes ${tera_planted_${TERA_SANITIZE}})
  else()
    set(modes ${tera_planted_plain})
  endif()
  set(wanted "")
  foreach(mode IN LISTS arg_IN)
    if(mode IN_LIST modes)
      list(APPEND wanted ${mode})
    endif()
  endforeach()
  if(NOT wanted)
    return()
  endif()

  set(folder ${CMAKE_CURRENT_BINARY_DIR}/planted/${name})
  tera_plant(${folder} ${arg_FILE} "${arg_OLD}" "${arg_NEW}")
  if(NOT arg_KERNEL)
    set(arg_KERNEL ${arg_FILE})
  endif()
  cmake_path(GET arg_KERNEL STEM stem)
  set(kernel tera/backend/cuda/kernels/${arg_KERNEL})
  set(root ${PROJECT_SOURCE_DIR})
  if(arg_KERNEL STREQUAL arg_FILE)
    set(root ${folder})
  endif()
  # From the root, so that what is compiled names no folder of this machine, and a compiler cache finds it elsewhere.
  add_custom_command(OUTPUT ${folder}/${stem}.cu.cpp DEPENDS ${root}/${kernel} cuda_on_cpu_translate
                     COMMAND cuda_on_cpu_translate ${kernel} ${folder}/${stem}.cu.cpp
                     WORKING_DIRECTORY ${root} VERBATIM)
  add_library(planted_${name} SHARED ${folder}/${stem}.cu.cpp
    $<FILTER:$<TARGET_OBJECTS:cuda_on_cpu_kernels>,EXCLUDE,/${stem}\\.cu\\.cpp>)
  set_target_properties(planted_${name} PROPERTIES OUTPUT_NAME cuda_on_cpu_kernels LIBRARY_OUTPUT_DIRECTORY ${folder})
  target_link_libraries(planted_${name} PRIVATE cuda_on_cpu_kernel_flags)
  target_include_directories(planted_${name} BEFORE PRIVATE ${folder})
  add_dependencies(emulated_tests planted_${name})

  if(NOT arg_SAYS)
    set(arg_SAYS "Failure")
  endif()
  if(NOT arg_PROGRAM)
    set(arg_PROGRAM op_tests_on_cpu)
  endif()
  foreach(mode IN LISTS wanted)
    set(environment LD_LIBRARY_PATH=${folder})
    set(says "${arg_SAYS}")
    set(command $<TARGET_FILE:${arg_PROGRAM}>)
    if(mode MATCHES "forward|reverse")
      list(APPEND environment CUDA_ON_CPU_ORDER=${mode})
    elseif(mode STREQUAL "random")
      list(APPEND environment CUDA_ON_CPU_ORDER=random:1)
    elseif(mode STREQUAL "address")
      set(says "AddressSanitizer: (global-buffer-overflow|use-after-poison|heap-buffer-overflow).*${arg_FILE}")
    else()
      list(APPEND environment TSAN_OPTIONS=halt_on_error=1)
      set(says "ThreadSanitizer: data race.*${arg_FILE}")
      set(command ${tera_fixed_addresses} ${command})
      if(mode STREQUAL "strict")
        list(APPEND environment CUDA_ON_CPU_STRICT=1)
      endif()
    endif()
    if(NOT arg_ARGUMENTS AND arg_PROGRAM STREQUAL "op_tests_on_cpu")
      set_property(DIRECTORY APPEND PROPERTY tera_cases_${mode} ${arg_TESTS})
      set_property(DIRECTORY PROPERTY tera_how_${mode} ${environment})
    endif()
    set(test PlantedFault.${name}.${mode})
    # Through another process, since CTest takes none for passed that a signal ended.
    add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E env ${environment} ${command} --device=cuda --gtest_brief=1
                                  --gtest_fail_fast --gtest_filter=${arg_TESTS} ${arg_ARGUMENTS})
    set_tests_properties(${test} PROPERTIES LABELS ${tera_emulated_label} PROCESSORS 2
                         PASS_REGULAR_EXPRESSION "${says}" TIMEOUT 120)
  endforeach()
endfunction()

# A barrier that is missing.
tera_planted_fault(tile_overwritten_early IN forward
  FILE plain_gemm.cu TESTS Gemm.SeveralChunks ARGUMENTS --plain-products
  OLD "sum += a_tile[y][i] * b_tile[i][x];\n    __syncthreads();" NEW "sum += a_tile[y][i] * b_tile[i][x];")
tera_planted_fault(block_sum_read_early IN reverse thread
  FILE types.cuh KERNEL norm.cu TESTS "NormOp.WideRows"
  OLD "if (lane == 0) shared[warp] = value;\n  __syncthreads();" NEW "if (lane == 0) shared[warp] = value;")
tera_planted_fault(block_sum_written_early IN strict
  FILE types.cuh KERNEL norm.cu TESTS "NormOp.WideRows"
  OLD "__syncthreads();  // shared may" NEW "// shared may")
tera_planted_fault(named_barrier_gone IN random thread
  FILE norm_backward.cu TESTS "NormOp.Backward" OLD "ptx::bar_sync(team.team + 1, team.lanes);" NEW "")
if(TARGET cuda_tests_on_cpu)  # attention of mma.sync: a copy that begins while others still read what was there
  tera_planted_fault(copy_begins_early IN random PROGRAM cuda_tests_on_cpu
    FILE attention/attention_mma.cu TESTS "CudaAttention.FastIsNearExactInSmallCases"
    OLD "__syncthreads();  // before this stage is overwritten" NEW "// before this stage is overwritten")
endif()
tera_planted_fault(attention_tile_overwritten_early IN thread
  FILE attention/attention.cu TESTS "Attention.ForwardWithWindows"
  OLD "__syncthreads();  // before the tiles" NEW "// before the tiles")
# A barrier that not all threads reach.
tera_planted_fault(barrier_in_a_branch IN forward
  FILE reduce.cu TESTS "ReduceOp.ColumnSum"
  OLD "sums[warp][lane * N + j] = sum[j];\n  __syncthreads();"
  NEW "sums[warp][lane * N + j] = sum[j];\n  if (first_column + lane * N < args.width) __syncthreads();")
# A __syncwarp that is missing: in the order of lanes nothing is wrong. After the last one, lanes happen to be in step.
tera_planted_fault(syncwarp_before_overwriting IN reverse random thread
  FILE experts/route.cu TESTS "RouteOp.Groups"
  OLD "left_out;\n  }\n  __syncwarp();" NEW "left_out;\n  }")
tera_planted_fault(syncwarp_before_reading IN strict
  FILE experts/route.cu TESTS "RouteOp.Groups"
  OLD "memory[group] = 1;\n  }\n  __syncwarp();" NEW "memory[group] = 1;\n  }")
# Copies that are read before they have arrived.
tera_planted_fault(copies_awaited_a_group_short IN forward SAYS "copies in flight"
  FILE loss.cu TESTS "CrossEntropyOp.WideVocabularies"
  OLD "cp_async_wait_group<max_kept_pairs - 1>" NEW "cp_async_wait_group<max_kept_pairs>")
# An update that other threads may overwrite.
tera_planted_fault(lost_atomic IN thread
  FILE experts/group_rows.cu TESTS "GroupRowsOp.EveryChoiceHasItsRow" OLD "atomicAdd(&counts[g], 1)" NEW "counts[g] += 1")
# Memory of others, and memory that none has written.
tera_planted_fault(shared_array_one_row_too_far IN address
  FILE reduce.cu TESTS "ReduceOp.ColumnSum"
  OLD "sums[warp][lane * N + j] = sum[j];" NEW "sums[warp + 1][lane * N + j] = sum[j];")
tera_planted_fault(one_vector_too_many IN address
  FILE norm.cu TESTS "NormOp.Forward"
  OLD "x[u][k] = v < args.shape.vectors" NEW "x[u][k] = v <= args.shape.vectors")
tera_planted_fault(never_written IN forward
  FILE types.cuh KERNEL reduce.cu TESTS "ReduceOp.Sums"
  OLD "if (lane == 0) shared[warp] = value;" NEW "if (lane == 0 && warp > 0) shared[warp] = value;")

# The right kernels: what faults are found by passes in each mode.
foreach(mode forward reverse random address thread strict)
  get_property(cases DIRECTORY PROPERTY tera_cases_${mode})
  get_property(how DIRECTORY PROPERTY tera_how_${mode})
  if(NOT cases)
    continue()
  endif()
  list(REMOVE_DUPLICATES cases)
  list(JOIN cases ":" cases)
  list(FILTER how EXCLUDE REGEX "^LD_LIBRARY_PATH")
  add_test(NAME PlantedFault.none.${mode} COMMAND ${tera_fixed_addresses} $<TARGET_FILE:op_tests_on_cpu> --device=cuda
                                                  --gtest_brief=1 --gtest_filter=${cases})
  set_tests_properties(PlantedFault.none.${mode} PROPERTIES LABELS ${tera_emulated_label} PROCESSORS 2 TIMEOUT 900
                                                            ENVIRONMENT "${how}")
endforeach()

# A stream that does not wait for another.
if(NOT TERA_SANITIZE AND TARGET cuda_tests_on_cpu)
  add_library(planted_no_waits SHARED without_waits.cpp)
  target_include_directories(planted_no_waits SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  foreach(seed 1 2)
    add_test(NAME PlantedFault.no_waits.streams_${seed} COMMAND cuda_tests_on_cpu --device=cuda --gtest_brief=1
                                                        --gtest_filter=CudaTransfers.BesideTheQueue*)
    set_tests_properties(PlantedFault.no_waits.streams_${seed} PROPERTIES LABELS emulated PROCESSORS 2
      PASS_REGULAR_EXPRESSION Failure
      ENVIRONMENT "LD_PRELOAD=$<TARGET_FILE:planted_no_waits>;CUDA_ON_CPU_STREAMS=random:${seed}")
  endforeach()
endif()
