#pragma once
// Microbatches of a step whose documents are dealt out anew (document_deal.h). To know how long they are, every rank
// looks at all samples of a step; of those whose documents it got it then takes the rows.

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "tera/data/batch_loader.h"
#include "tera/data/document_deal.h"

namespace tera {

class Dealer {
 public:
  struct Options {
    DealOptions deal;
    int replica = 0, rank = 0;          // this one's: among the replicas, and among the C ranks of its own
    std::int64_t micro_batch_size = 1;  // sequences of a microbatch, where they stay as they are
    std::size_t steps = 1;              // kept at a time
  };
  // How a step is dealt out.
  class Step {
   public:
    explicit Step(const DealOptions& options) : deal_(options) {
      documents_.reserve(options.documents);
      dealt_.reserve(options.documents);
    }
    const DocumentDeal& deal() const { return deal_; }
    const BatchCounts& counts() const { return counts_; }  // of the whole step; documents are left out

   private:
    friend class Dealer;
    std::int64_t consumed_ = -1;
    std::vector<DocumentPlace> documents_;
    std::vector<DealtDocument> dealt_;
    BatchCounts counts_;
    DocumentDeal deal_;
  };

  explicit Dealer(const Options& options);

  // Any thread may ask, each with a loader of its own; who comes first reads. Stays until `steps` others were asked
  // for.
  const Step& step(BatchLoader& loader, std::int64_t consumed, std::int64_t samples);

  // Own block of a microbatch: all rows that its ranks share, k T of them; room has C T. What was used of it is
  // returned, with as many offsets as there are documents.
  struct Filled {
    BatchSpans rows;
    BatchCounts counts;
  };
  Filled fill(BatchLoader& loader, const Step& step, std::int64_t microbatch, const BatchSpans& room) const;

 private:
  Options options_;
  std::mutex mutex_;  // guards steps_ and next_
  std::vector<Step> steps_;
  std::size_t next_ = 0;
};

}  // namespace tera
