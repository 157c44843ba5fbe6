#pragma once
// The datasets of a run's splits (train, valid, test), one SplitMaker for each kind of data.

#include <memory>
#include <string>
#include <vector>

#include "tera/config/setup.h"
#include "tera/data/data_split.h"
#include "tera/data/dataset.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

// A validation set with a loss of its own.
struct ValidationSet {
  std::string name;  // empty where there is only one
  std::unique_ptr<Dataset> dataset;
  std::int64_t batches = 0;  // global batches of one evaluation
};

// Makes the splits of a run, and describes their data.
class SplitMaker {
 public:
  virtual ~SplitMaker() = default;
  virtual std::unique_ptr<Dataset> make(DataSplit split) = 0;  // null where the split is empty
  virtual std::vector<ValidationSet> make_validation_sets();   // those that are not empty
  virtual std::string summary() const = 0;
  const std::vector<std::string>& warnings() const { return warnings_; }  // about the splits made so far

 protected:
  std::vector<std::string> warnings_;
};

// setup and tokenizer outlive the SplitMaker.
std::unique_ptr<SplitMaker> make_splits(const Setup& setup, const Tokenizer& tokenizer);

}  // namespace tera
