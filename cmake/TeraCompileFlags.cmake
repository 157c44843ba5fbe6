# tera_flags carries what every target of ours is compiled with; it is never exported.
add_library(tera_flags INTERFACE)
set(tera_cxx_flags -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual -Werror
                   -Wno-missing-field-initializers  # argument structs have defaults
                   -Wno-restrict)  # g++ 12 sees overlap in "text" + std::string where there is none
set(tera_cuda_flags -Xcompiler=-Wall,-Wextra -Werror=all-warnings)
target_compile_options(tera_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${tera_cxx_flags}>"
                                            "$<$<COMPILE_LANGUAGE:CUDA>:${tera_cuda_flags}>")

# Directory-wide, so that it comes before what a target asks for: kernels do want fused multiply-adds.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>")

# g++ spends a tenth of its time on collecting garbage. Where every core has memory enough for the half more that a
# compiler then takes (1.6 GB for the largest batch), it collects none below 2 GB. What it writes is the same.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  cmake_host_system_information(RESULT tera_memory QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT tera_cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR tera_memory_per_core "${tera_memory} / ${tera_cores}")
  if(tera_memory_per_core GREATER 3000)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=400;--param=ggc-min-heapsize=2000000>")
  endif()
endif()

if(TERA_SANITIZE STREQUAL "address")
  # Null pointers that are read or written fault by themselves. Accesses outside an allocation, and what a pointer gone
  # wrong by its arithmetic leads to, AddressSanitizer sees; to check for them twice takes a sixth more of the compiler.
  set(tera_sanitize_flags -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow
      -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(TERA_SANITIZE STREQUAL "thread")
  # g++ 12 loses sight of loop bounds under this sanitizer and warns of overflows that cannot happen.
  set(tera_sanitize_flags -fsanitize=thread -fno-omit-frame-pointer -Wno-array-bounds
      -Wno-stringop-overflow)
elseif(TERA_SANITIZE)
  message(FATAL_ERROR "TERA_SANITIZE is '${TERA_SANITIZE}'; it may be empty, address or thread")
endif()
if(TERA_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ guesses wrongly about initialisation in instrumented code (std::regex under g++ 13).
  list(APPEND tera_sanitize_flags -Wno-maybe-uninitialized)
  if(TERA_SANITIZE STREQUAL "address")
    # The fake stack that finds use after return aligns to 32 bytes; AVX-512 variables need 64 and fault (g++ 13).
    list(APPEND tera_sanitize_flags --param=asan-use-after-return=0)
  endif()
endif()
if(TERA_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${tera_sanitize_flags}>")
  add_link_options(${tera_sanitize_flags})
  find_program(TERA_GOLD ld.gold)
  if(TERA_GOLD)
    add_link_options(-fuse-ld=gold)  # takes half the time for programs with instrumentation
  endif()
endif()
