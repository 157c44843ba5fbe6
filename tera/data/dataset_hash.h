#pragma once

#include <cstdint>

#include "tera/data/dataset.h"

namespace tera {

// To find out whether ranks read the same data: of the number of samples, and of some that lie all over the data, each
// of so many ids. It says nothing of those between.
std::uint64_t hash_some_samples(const Dataset& data, std::int64_t ids);

}  // namespace tera
