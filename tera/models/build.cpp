#include "tera/models/build.h"

#include <algorithm>
#include <array>

#include "tera/nn/layer.h"
#include "tera/nn/recompute.h"

namespace tera {
namespace {

class Builder {
 public:
  Builder(const ModelSpec& spec, std::span<const BlockRange> chunks, ParamStore& params, const TensorParallel& tp,
          const ExpertParallel& experts, const ContextParallel& cp)
      : spec_(spec), params_(params), tp_(tp), context_{params, tp, experts, cp} {
    for (const auto& chunk : chunks) {
      embedding_here_ = embedding_here_ || chunk.embedding;
      head_here_ = head_here_ || chunk.head;
    }
  }

  Blocks build(const BlockRange& range) {
    Blocks blocks;
    if (range.embedding) add(blocks, [&] { return embedding(); });
    add_layers(blocks, range);
    if (!range.head) return blocks;
    add(blocks, [&] { return head(); });
    for (std::size_t i = 0; i < spec_.mtp.size(); ++i) {
      const bool again =
          spec_.recompute.unit > 0 && range.layers + static_cast<std::int64_t>(i) < spec_.recompute.layers_per_chunk;
      add(blocks, [&] { return std::make_unique<Mtp>(i + 1, mtp_layer(spec_.mtp[i], again)); });
      add(blocks,
          [&] { return std::make_unique<Mtp>(i + 1, std::make_unique<Head>(params_, spec_.mtp[i].head, head_, tp_)); });
    }
    return blocks;
  }

 private:
  template <class Make>
  void add(Blocks& blocks, Make make) {
    params_.begin_block(next_++);
    blocks.push_back(make());
  }

  std::unique_ptr<Block> embedding() {
    EmbeddingSpec spec = spec_.embedding;
    spec.on_another_stage = (spec_.tied || !spec_.mtp.empty()) && !head_here_;
    auto block = std::make_unique<Embedding>(params_, spec, tp_);
    table_ = &block->table();
    return block;
  }

  std::unique_ptr<Block> head() {
    HeadSpec spec = spec_.head;
    spec.tied_elsewhere = spec_.tied && !embedding_here_;
    if (spec.tied_elsewhere) spec.name = spec_.embedding.name;
    auto block = std::make_unique<Head>(params_, spec, spec_.tied ? table_ : nullptr, tp_);
    head_ = &block->weight();
    if (spec_.tied) table_ = head_;
    return block;
  }

  // The embedding table of MTP layers: that of the embedding or a tied head, if one of them is here, else a copy for
  // all depths.
  std::unique_ptr<Block> mtp_layer(const MtpSpec& spec, bool recomputed) {
    MtpInputSpec input = spec.input;
    input.embedding.on_another_stage = input.embedding.norm_counted_elsewhere = !table_;
    auto first = std::make_unique<MtpInput>(params_, input, tp_, table_);
    table_ = &first->table();
    Blocks links;
    links.push_back(std::move(first));
    for (const SublayerSpec& sublayer : spec.layer.sublayers)
      links.push_back(std::make_unique<Sublayer>(sublayer, context_));
    auto chain = std::make_unique<Chain>("layer", std::move(links));
    if (!recomputed) return chain;
    return std::make_unique<Recompute>(std::move(chain));
  }

  std::unique_ptr<Block> layer(std::int64_t index) {
    return make_layer(spec_.layers[static_cast<std::size_t>(index)], context_);
  }

  // Adds layers with full activation recomputation, in units, then the others.
  void add_layers(Blocks& blocks, const BlockRange& range) {
    const RecomputeRule& rule = spec_.recompute;
    const std::int64_t end = range.first_layer + range.layers;
    const std::int64_t recomputed = rule.unit == 0 ? 0 : std::min(range.layers, rule.layers_per_chunk);
    std::int64_t i = range.first_layer;
    while (i < range.first_layer + recomputed) {
      const std::int64_t unit = std::min(rule.unit, range.first_layer + recomputed - i);
      add(blocks, [&] { return std::make_unique<Recompute>(layers(i, i + unit)); });
      i += unit;
    }
    for (; i < end; ++i) add(blocks, [&] { return layer(i); });
  }

  std::unique_ptr<Block> layers(std::int64_t begin, std::int64_t end) {
    if (end == begin + 1) return layer(begin);
    Blocks links;
    for (std::int64_t i = begin; i < end; ++i) links.push_back(layer(i));
    return std::make_unique<Chain>("layers", std::move(links));
  }

  const ModelSpec& spec_;
  ParamStore& params_;
  const TensorParallel& tp_;
  BuildContext context_;
  bool embedding_here_ = false, head_here_ = false;
  Param *table_ = nullptr, *head_ = nullptr;  // the embedding table and the head's weight, once they are built
  int next_ = 0;
};

}  // namespace

std::unique_ptr<Block> make_layer(const LayerSpec& spec, const BuildContext& context) {
  Blocks links;
  for (const SublayerSpec& sublayer : spec.sublayers) links.push_back(std::make_unique<Sublayer>(sublayer, context));
  return std::make_unique<Chain>("layer", std::move(links));
}

Blocks build_blocks(const ModelSpec& spec, ParamStore& params, const TensorParallel& tp, const ExpertParallel& experts,
                    const ContextParallel& cp) {
  const std::array all{BlockRange{.layers = static_cast<std::int64_t>(spec.layers.size())}};
  return std::move(build_chunks(spec, all, params, tp, experts, cp).front());
}

std::vector<Blocks> build_chunks(const ModelSpec& spec, std::span<const BlockRange> chunks, ParamStore& params,
                                 const TensorParallel& tp, const ExpertParallel& experts, const ContextParallel& cp) {
  Builder builder(spec, chunks, params, tp, experts, cp);
  std::vector<Blocks> built;
  for (const auto& chunk : chunks) built.push_back(builder.build(chunk));
  return built;
}

}  // namespace tera
