// Fuzzes config.json of a Hugging Face folder: an accepted text describes a valid model, which survives a round trip.

#include <string>

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/checkpoint/weight_source.h"
#include "tera/hf/config/hf_config.h"
#include "tera/setup/resolve.h"

namespace tera::fuzz {
namespace {

ModelShape shape_of(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  config.train.seq_length = model.max_position_embeddings;
  return resolve(config, Purpose::inspect).model;
}

void check_shape(const ModelShape& shape) {
  must(shape.num_layers > 0 && shape.hidden > 0 && shape.vocab > 0 && shape.heads > 0 && shape.kv_heads > 0);
  must(shape.heads % shape.kv_heads == 0 && shape.head_dim > 0 && shape.padded_vocab >= shape.vocab);
  must(shape.window.size() == static_cast<std::size_t>(shape.num_layers));
  if (shape.num_layers > 100) return;  // too many names to list
  for (const ModelTensor& tensor : weights_of(shape)) must(!tensor.name.empty() && count(tensor.shape) > 0);
}

}  // namespace
}  // namespace tera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  try {
    const ModelConfig model = parse_hf_config(text, "config.json");
    const ModelShape shape = fuzz::shape_of(model);
    fuzz::check_shape(shape);
    for (const std::string_view source : {text, std::string_view()}) {
      try {
        const std::string written = format_hf_config(shape, {.source = source, .dtype = "bfloat16"});
        const ModelShape again = fuzz::shape_of(parse_hf_config(written, "config.json"));
        fuzz::must(again.hidden == shape.hidden && again.window == shape.window && again.heads == shape.heads);
        fuzz::must(again.num_layers == shape.num_layers && again.tied_embeddings == shape.tied_embeddings);
      } catch (const UserError&) {  // the model has no config.json
      }
    }
  } catch (const UserError&) {
  }
  return 0;
}
