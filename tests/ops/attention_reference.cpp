#include "tests/ops/attention_reference.h"

#include <cmath>
#include <limits>

namespace tera::test {
namespace {

// One query of one head against one key: everything the definition says about the pair.
struct Pair {
  std::int64_t query, key, head;  // rows of q and k
  std::size_t q, k;               // index of the first of D elements
};

bool sees(const AttentionProblem& p, const SequenceRows& s, std::int64_t query, std::int64_t key) {
  if (p.mask == Mask::full) return true;
  if (!p.q_positions.empty()) {
    const std::int64_t from = p.q_positions[static_cast<std::size_t>(query)],
                       to = p.k_positions[static_cast<std::size_t>(key)];
    return to <= from && (p.window == 0 || from - to < p.window);
  }
  const std::int64_t own = s.k_end - (s.q_end - query);  // the key that stands where the query stands
  return key <= own && (p.window == 0 || key > own - p.window);
}

template <class Body>
void for_each_pair(const AttentionProblem& p, const Body& body) {
  for (const auto& s : p.sequences)
    for (std::int64_t head = 0; head < p.N; ++head)
      for (std::int64_t query = s.q_begin; query < s.q_end; ++query)
        for (std::int64_t key = s.k_begin; key < s.k_end; ++key)
          if (sees(p, s, query, key))
            body(Pair{query, key, head, static_cast<std::size_t>((query * p.N + head) * p.D),
                      static_cast<std::size_t>((key * p.G + head / (p.N / p.G)) * p.D)});
}

double keep(const AttentionProblem& p, const Pair& pair) {
  if (p.dropout == 0) return 1;
  const auto q_id = static_cast<std::uint64_t>(p.q_ids[static_cast<std::size_t>(pair.query)]);
  const auto k_id = static_cast<std::uint64_t>(p.k_ids[static_cast<std::size_t>(pair.key)]);
  const auto words = philox(p.key, q_id, k_id / 4 + (static_cast<std::uint64_t>(pair.head) << 48));
  return uniform_from_bits(words[k_id % 4]) >= static_cast<float>(p.dropout) ? 1 / (1 - p.dropout) : 0;
}

struct Dot {
  double value = 0, magnitude = 0;
};
Dot dot(const Values& a, std::size_t i, const Values& b, std::size_t j, std::int64_t count) {
  Dot sum;
  for (std::size_t d = 0; d < static_cast<std::size_t>(count); ++d) {
    sum.value += a[i + d] * b[j + d];
    sum.magnitude += std::abs(a[i + d] * b[j + d]);
  }
  return sum;
}

std::size_t lse_index(const AttentionProblem& p, const Pair& pair) {
  return static_cast<std::size_t>(pair.head * p.q_rows() + pair.query);
}

Measured zeros(std::size_t size) { return {Values(size), Values(size)}; }

void add(Measured& sum, std::size_t i, double value, double magnitude) {
  sum.value[i] += value;
  sum.magnitude[i] += magnitude;
}

}  // namespace

AttentionResult attention_reference(const AttentionProblem& p, const Values& q, const Values& k, const Values& v) {
  const auto rows = static_cast<std::size_t>(p.N * p.q_rows());
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Values row_max(rows, -infinity), sum(rows), widest(rows);
  for_each_pair(p, [&](const Pair& pair) {
    const Dot score = dot(q, pair.q, k, pair.k, p.D);
    const std::size_t row = lse_index(p, pair);
    row_max[row] = std::max(row_max[row], p.scale * score.value);
    widest[row] = std::max(widest[row], p.scale * score.magnitude);
  });
  for_each_pair(p, [&](const Pair& pair) {
    const std::size_t row = lse_index(p, pair);
    sum[row] += std::exp(p.scale * dot(q, pair.q, k, pair.k, p.D).value - row_max[row]);
  });
  AttentionResult result{zeros(q.size()), zeros(rows)};
  for (std::size_t row = 0; row < rows; ++row)
    add(result.lse, row, sum[row] == 0 ? -infinity : row_max[row] + std::log(sum[row]), 1 + widest[row]);
  for_each_pair(p, [&](const Pair& pair) {
    const std::size_t row = lse_index(p, pair);
    const double score = p.scale * dot(q, pair.q, k, pair.k, p.D).value;
    const double kept = keep(p, pair) * std::exp(score - result.lse.value[row]);
    for (std::size_t d = 0; d < static_cast<std::size_t>(p.D); ++d)
      add(result.out, pair.q + d, kept * v[pair.k + d], kept * std::abs(v[pair.k + d]) * (1 + 2 * widest[row]));
  });
  return result;
}

AttentionGradients attention_back_reference(const AttentionProblem& p, const AttentionSaved& saved) {
  AttentionGradients result{zeros(saved.q.size()), zeros(saved.k.size()), zeros(saved.v.size())};
  for_each_pair(p, [&](const Pair& pair) {
    const Dot score = dot(saved.q, pair.q, saved.k, pair.k, p.D),
              delta = dot(saved.dout, pair.q, saved.out, pair.q, p.D);
    const Dot dp = dot(saved.dout, pair.q, saved.v, pair.k, p.D);
    const double lse = saved.lse[lse_index(p, pair)], kept = keep(p, pair);
    const double probability = std::exp(p.scale * score.value - lse);
    const double blur = 1 + p.scale * score.magnitude + std::abs(lse);  // the probability's error, units of rounding
    const double ds = probability * (kept * dp.value - delta.value);
    const double ds_magnitude = std::abs(ds) * blur + probability * (kept * dp.magnitude + delta.magnitude);
    for (std::size_t d = 0; d < static_cast<std::size_t>(p.D); ++d) {
      const double q = saved.q[pair.q + d], k = saved.k[pair.k + d], dout = saved.dout[pair.q + d];
      add(result.dv, pair.k + d, kept * probability * dout, kept * probability * blur * std::abs(dout));
      add(result.dk, pair.k + d, p.scale * ds * q, p.scale * ds_magnitude * std::abs(q));
      add(result.dq, pair.q + d, p.scale * ds * k, p.scale * ds_magnitude * std::abs(k));
    }
  });
  return result;
}

}  // namespace tera::test
