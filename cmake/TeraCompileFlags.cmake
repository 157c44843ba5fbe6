# tera_flags carries what every target of ours is compiled with; it is never exported.
add_library(tera_flags INTERFACE)
target_compile_options(tera_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
                                            -Woverloaded-virtual -Wno-missing-field-initializers -Werror)

# Directory-wide, so that it comes before what a target asks for: kernels do want fused multiply-adds.
add_compile_options(-ffp-contract=off)

if(TERA_SANITIZE STREQUAL "address")
  set(tera_sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(TERA_SANITIZE STREQUAL "thread")
  set(tera_sanitize_flags -fsanitize=thread -fno-omit-frame-pointer)
elseif(TERA_SANITIZE)
  message(FATAL_ERROR "TERA_SANITIZE is '${TERA_SANITIZE}'; it may be empty, address or thread")
endif()
if(TERA_SANITIZE)
  add_compile_options(${tera_sanitize_flags})
  add_link_options(${tera_sanitize_flags})
endif()
