#pragma once
// Partial sums of row blocks, one row of the workspace each, added in order: shared by column_sum and norm_back.

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_isa.h"

namespace tera::cpu {

// out += the sum of `rows` rows of partial [rows,width].
void add_partial_sums(ThreadPool& pool, Isa isa, const float* partial, std::int64_t rows, std::int64_t width,
                      float* out);

}  // namespace tera::cpu
