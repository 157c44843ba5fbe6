#pragma once
// The datasets of a run's splits, each kind of data in its own way.

#include <memory>
#include <string>
#include <vector>

#include "tera/config/setup.h"
#include "tera/data/data_split.h"
#include "tera/data/dataset.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

// Data that is evaluated by itself.
struct ValidationSet {
  std::string name;  // empty where there is only one
  std::unique_ptr<Dataset> dataset;
  std::int64_t batches = 0;  // global ones of one evaluation
};

// Makes the splits of a run, and says what they are made of.
class SplitMaker {
 public:
  virtual ~SplitMaker() = default;
  virtual std::unique_ptr<Dataset> make(DataSplit split) = 0;  // none where the split has nothing
  virtual std::vector<ValidationSet> make_validation_sets();   // those that have something
  virtual std::string summary() const = 0;
  const std::vector<std::string>& warnings() const { return warnings_; }  // about what was made so far

 protected:
  std::vector<std::string> warnings_;
};

// Both outlive it.
std::unique_ptr<SplitMaker> make_splits(const Setup& setup, const Tokenizer& tokenizer);

}  // namespace tera
