// Mistral 7B: Llama with a sliding window.

#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_window.h"
#include "tera/models/families/families.h"

namespace tera::mistral {
namespace {

constexpr HfDecoder keys{
    .sizes = {
        .vocab = 32000, .hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .positions = 131072}};

void set_defaults(ModelConfig& model) {
  set_llama_defaults(model);
  model.window_size = 4096;
}

// Where the file has layer_types, they decide: AutoModel loads such a mistral as a Ministral.
void read_hf(const HfFields& config, ModelConfig& model) {
  read_hf_decoder(config, keys, model);
  set_window(model, read_hf_windows(config, model, read_hf_window(config, true, 4096), 0));
}

void write_hf(const ModelConfig& model, HfJson& config) {
  write_hf_decoder(model, keys, config);
  write_hf_window(model, config);
  check_hf_equal_windows(model);
}

}  // namespace

extern const ModelFamily family{.name = "mistral",
                                .hf_type = "mistral",
                                .hf_class = "MistralForCausalLM",
                                .hf_since = "4.46.0",
                                .defaults = set_defaults,
                                .read_hf = read_hf,
                                .write_hf = write_hf,
                                .finish_hf = finish_hf_rope,
                                .names = llama_names,
                                .make_spec = make_decoder_spec};

}  // namespace tera::mistral
