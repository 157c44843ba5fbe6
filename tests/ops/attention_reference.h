#pragma once
// Attention by its definition, in double, without tiles: what the kernels are compared with.

#include <functional>
#include <vector>

#include "tera/base/kinds.h"
#include "tera/base/rng.h"
#include "tests/support/fill.h"

namespace tera::test {

struct SequenceRows {
  std::int64_t q_begin, q_end, k_begin, k_end;
};

struct AttentionProblem {
  std::vector<SequenceRows> sequences;
  std::int64_t N = 1, G = 1, D = 1;
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  double scale = 1;
  double dropout = 0;
  RngKey key;
  std::vector<std::int64_t> q_ids, k_ids;              // for dropout
  std::vector<std::int32_t> q_positions, k_positions;  // positions of all rows, or empty

  std::int64_t q_rows() const { return sequences.back().q_end; }
  std::int64_t k_rows() const { return sequences.back().k_end; }
};

// Values and, beside each, the sum of the absolute values of what was added up to make it, each term weighted by how
// much rounding of its own inputs moves it; tolerances scale with that.
struct Measured {
  Values value, magnitude;
};

struct AttentionResult {
  Measured out, lse;
};
AttentionResult attention_reference(const AttentionProblem& problem, const Values& q, const Values& k, const Values& v);

// Backward from the given out and lse.
struct AttentionGradients {
  Measured dq, dk, dv;
};
struct AttentionSaved {
  const Values &q, &k, &v, &out, &dout, &lse;
};
AttentionGradients attention_back_reference(const AttentionProblem& problem, const AttentionSaved& saved);

}  // namespace tera::test
