#pragma once

#include <cstdint>

#include "tera/data/dataset.h"

namespace tera {

// A hash by which ranks compare their data: of the number of samples, and of the ids of some samples spread over the
// data, each of so many ids. The samples between are not hashed.
std::uint64_t hash_some_samples(const Dataset& data, std::int64_t ids);

}  // namespace tera
