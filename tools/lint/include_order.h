#pragma once
// Checks the order of includes between folders of the library, which is also the reading order of the code base.

#include <string>
#include <string_view>

namespace tera::lint {

// Why `path` may not include `header` ("tera/ops/gemm.h" or "cmath"); empty when it may.
std::string include_problem(std::string_view path, std::string_view header);

// The folder of a library file that the order is about: "nn" of tera/nn/mixers/attention.h, "backend/cpu" of
// tera/backend/cpu/kernels/vec.h; empty outside the library.
std::string_view folder_of(std::string_view path);

}  // namespace tera::lint
