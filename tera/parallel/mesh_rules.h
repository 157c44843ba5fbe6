#pragma once
// The rules of a mesh, for code that proposes other sizes.

#include <cstdint>
#include <vector>

#include "tera/parallel/mesh_plan.h"

namespace tera {

// Whether sizes that are within their limits break no rule.
bool is_valid_mesh(const MeshSizes& sizes);

// As mesh_problems(sizes), for a model with so many experts: messages offer only ep that divides them.
std::vector<MeshProblem> mesh_problems(const MeshSizes& sizes, std::int64_t experts);

}  // namespace tera
