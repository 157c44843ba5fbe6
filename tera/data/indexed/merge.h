#pragma once
// Merges several datasets into one.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tera/data/preprocess/preprocess.h"

namespace tera {

// Writes the documents of all prefixes, in the order given, as PREFIX.bin/.idx; byte for byte what Megatron-LM's
// merge_datasets.py writes for that order. All must hold the same number type, and none may be the output, which may be
// named with .bin or .idx too. `progress` is called with the bytes of .bin copied so far and the bytes of all; it may
// throw to stop. If anything throws, there is no output.
PreprocessReport::Output merge_datasets(std::span<const std::string> prefixes, std::string output_prefix,
                                        const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace tera
