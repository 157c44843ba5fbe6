#pragma once

namespace tera {

// Cores that this process may run on: what its affinity mask leaves, not what the machine has.
int usable_cores();

}  // namespace tera
