#pragma once

namespace tera {

// Cores in the affinity mask of this process, not of the machine.
int usable_cores();

}  // namespace tera
