#pragma once
// The rules of a mesh, for those who propose other sizes.

#include <cstdint>
#include <vector>

#include "tera/config/mesh_plan.h"

namespace tera {

// Whether nothing is wrong with sizes that are within their limits.
bool mesh_fits(const MeshSizes& sizes);

// As mesh_problems() of a model with so many experts: ranks that could not share them evenly are not offered.
std::vector<MeshProblem> mesh_problems(const MeshSizes& sizes, std::int64_t experts);

}  // namespace tera
