#include "tera/data/gpt_dataset.h"

#include <algorithm>
#include <utility>

#include "tera/base/error.h"

namespace tera {

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> data, const Options& options)
    : data_(std::move(data)), options_(options) {
  require_user(is_integer(data_->token_type()), "{}.idx: dtype: {} cannot be token ids", data_->prefix(),
               name_of(data_->token_type()));
  index_ = make_gpt_index(data_->lengths(), options.index, options.cache_path);
}

bool GptDataset::has_gaps() const { return !options_.index.add_extra_token || !options_.index.drop_last_partial; }

void GptDataset::sample(std::int64_t index, std::span<std::int32_t> tokens) const {
  const GptIndexOptions& options = options_.index;
  require(index >= 0 && samples() > 0 && std::ssize(tokens) == options.seq_length + 1,
          "sample {} of {} has {} ids, {} were asked for", index, samples(), options.seq_length + 1, tokens.size());
  const GptIndexView view = index_.view();
  const std::size_t chosen = view.order[static_cast<std::size_t>(index % samples())];
  const auto position_of = [&](std::size_t i) { return static_cast<std::size_t>(view.starts.position[i]); };
  std::span<std::int32_t> rest = tokens;
  std::int64_t begin = view.starts.offset[chosen];
  for (std::size_t position = position_of(chosen), last = position_of(chosen + 1); position <= last;
       ++position, begin = 0) {
    const std::int32_t document = view.documents[position];
    const std::int64_t end = position < last ? data_->lengths()[static_cast<std::size_t>(document)]
                                             : view.starts.offset[chosen + 1] + (options.add_extra_token ? 1 : 0);
    require(end >= begin && end - begin <= std::ssize(rest), "sample {} does not fit its row", index);
    const auto part = rest.first(static_cast<std::size_t>(end - begin));
    data_->read(document, begin, options_.vocab_size, part);
    rest = rest.subspan(part.size());
  }
  std::ranges::fill(rest, -1);
}

}  // namespace tera
