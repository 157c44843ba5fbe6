#pragma once

namespace tera::cuda {

// Opens a library of the CUDA world by a name of ours: from where the system looks, else from the toolkit that this was
// built with. Null when it is nowhere. Its symbols serve libraries opened later, too.
void* open_library(const char* name);

}  // namespace tera::cuda
