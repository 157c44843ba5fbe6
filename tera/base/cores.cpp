#include "tera/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace tera {

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));  // the mask is too small for the machine
}

}  // namespace tera
