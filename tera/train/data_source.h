#pragma once
// Tokenizer and datasets of a run, from its config.

#include <memory>

#include "tera/config/setup.h"
#include "tera/data/dataset.h"
#include "tera/data/tokenizer.h"

namespace tera {

std::unique_ptr<Tokenizer> make_tokenizer(const Setup& setup);

struct DataSource {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> valid;  // none when the split gives it nothing or no evaluation is asked for
  std::string summary;             // for the log
};

DataSource make_data_source(const Setup& setup);

}  // namespace tera
