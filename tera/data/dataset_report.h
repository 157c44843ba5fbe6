#pragma once
// Statistics of a dataset: counts, and a histogram of the lengths of its documents.

#include <cstdint>
#include <string>
#include <vector>

#include "tera/data/indexed/indexed_dataset.h"

namespace tera {

// A histogram of tokens per document. A bin reaches from one power of two to the next; no bin is left out between the
// first and the last.
struct LengthHistogram {
  struct Bin {
    std::int64_t first = 0, last = 0;  // lengths, both inclusive
    std::int64_t documents = 0;
  };
  std::vector<Bin> bins;
  std::int64_t shortest = 0, longest = 0;
  double mean = 0;
};

// Reads every token, whose type is an integer.
struct IdRange {
  std::int64_t smallest = 0, largest = -1;  // these values where there are no tokens
};
IdRange id_range(const IndexedDataset& data);

LengthHistogram document_lengths(const IndexedDataset& data);

// One line for each bin, drawn with characters; `columns` is for the longest bar.
std::string draw(const LengthHistogram& histogram, int columns);

}  // namespace tera
