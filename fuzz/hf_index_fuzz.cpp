// Fuzzes model.safetensors.index.json of a Hugging Face folder with two shards: if it opens, all tensors are read.

#include <string>
#include <vector>

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/hf_folder.h"
#include "tera/setup/resolve.h"

namespace tera::fuzz {
namespace {

constexpr std::string_view config_text = R"({"model_type": "llama", "hidden_size": 4, "intermediate_size": 3,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5,
  "max_position_embeddings": 8, "tie_word_embeddings": true})";

ModelShape shape_of(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  config.train.seq_length = model.max_position_embeddings;
  return resolve(config, Purpose::inspect).model;
}

// Tensors alternate between a.safetensors and b.safetensors; the tied head is in both.
class Shards : public FuzzFolder {
 public:
  Shards() {
    write("config.json", {reinterpret_cast<const std::uint8_t*>(config_text.data()), config_text.size()});
    std::vector<SafetensorsSpec> specs[2];
    std::size_t number = 0;
    for (const ModelTensor& tensor : weights_of(shape_of(parse_hf_config(config_text, "config.json"))))
      specs[number++ % 2].push_back({tensor.name, DType::f32, tensor.shape});
    for (std::size_t i = 0; i < 2; ++i) {
      specs[i].push_back({"lm_head.weight", DType::f32, shape(5, 4)});
      SafetensorsWriter writer(path() / (i == 0 ? "a.safetensors" : "b.safetensors"), specs[i]);
      for (const SafetensorsSpec& spec : specs[i]) {
        const std::vector<float> values(static_cast<std::size_t>(count(spec.shape)), static_cast<float>(i));
        writer.write(spec.name, std::as_bytes(std::span(values)));
      }
      writer.finish();
    }
  }
};

void read_all(const HfFolder& folder) {
  for (const auto& [name, entry] : folder.tensors()) {
    const WeightBox box = full_box(entry.shape);
    std::vector<std::byte> out(static_cast<std::size_t>(box.elements()) * size_of(entry.dtype));
    folder.read(name, box, out);
  }
}

}  // namespace
}  // namespace tera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  static const fuzz::Shards shards;
  shards.write("model.safetensors.index.json", {bytes, size});
  try {
    const HfFolder folder(shards.path());
    fuzz::must(folder.file_count() >= 1);
    fuzz::read_all(folder);
    check_tensors(folder, fuzz::shape_of(folder.model()));
  } catch (const UserError&) {
  }
  return 0;
}
