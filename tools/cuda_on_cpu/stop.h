#pragma once

namespace cuda_on_cpu {

// Ends the program: what a kernel or a caller of the runtime does wrong would be undefined on a GPU.
[[noreturn]] void stop(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace cuda_on_cpu
