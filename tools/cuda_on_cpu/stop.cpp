#include "tools/cuda_on_cpu/stop.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace cuda_on_cpu {

void stop(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::fputs("cuda on cpu: ", stderr);
  std::vfprintf(stderr, format, list);
  std::fputs("\n", stderr);
  va_end(list);
  std::abort();
}

}  // namespace cuda_on_cpu
