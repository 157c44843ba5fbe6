#pragma once
// Documents packed into one sequence compared with each of them in a sequence of its own.

#include "tests/end_to_end/training_run.h"

namespace tera::test {

struct LossAndGradients {
  double eval_loss = 0, loss = 0;  // sums over tokens
  std::vector<float> gradients;    // all parameters, in name order
};

struct PackedDocuments {
  LossAndGradients packed, apart;
  LossAndGradients mixed;  // packed, but attending over the ends of documents
};

PackedDocuments run_documents(const std::string& config, const Overrides& overrides);

// The largest difference over the largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tera::test
