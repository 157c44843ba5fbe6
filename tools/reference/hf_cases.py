"""Small random models of every architecture, each there for one thing that readers of such folders get wrong.

A case is a transformers model and, where it matters, how its folder differs from what transformers 5 writes today:
the keys of transformers 4, names without prefix, buffers that old versions saved along.
"""
import json

import torch
from safetensors import safe_open
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

import golden_file
from small_models import rope

VOCABULARY = 29
SHAPE = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=40, rms_norm_eps=1e-5, attention_dropout=0.0,
             bos_token_id=None, eos_token_id=None)


def make(family, config, **changes):
    return family(config(**(SHAPE | dict(tie_word_embeddings=False, rope_parameters=rope()) | changes)))


def llama(**changes):
    return make(LlamaForCausalLM, LlamaConfig, **changes)


def mistral(**changes):
    return make(MistralForCausalLM, MistralConfig, **changes)


def qwen2(**changes):
    return make(Qwen2ForCausalLM, Qwen2Config, **changes)


def qwen3(**changes):
    return make(Qwen3ForCausalLM, Qwen3Config, **changes)


def mixtral(**changes):
    return make(MixtralForCausalLM, MixtralConfig, **(dict(num_local_experts=4, num_experts_per_tok=2) | changes))


def qwen3_moe(**changes):
    shape = dict(head_dim=10, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=8)
    return make(Qwen3MoeForCausalLM, Qwen3MoeConfig, **(shape | changes))


def deepseek_v2(**changes):
    shape = dict(num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2,
                 moe_intermediate_size=12, n_shared_experts=2, topk_method="greedy", q_lora_rank=10, kv_lora_rank=8,
                 qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7)
    return make(DeepseekV2ForCausalLM, DeepseekV2Config, **(shape | changes))


def deepseek_v3(**changes):
    shape = dict(num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2,
                 moe_intermediate_size=8, n_shared_experts=1, n_group=3, topk_group=2, q_lora_rank=10, kv_lora_rank=8,
                 qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, num_mtp_layers=0)
    model = make(DeepseekV3ForCausalLM, DeepseekV3Config, **(shape | changes))
    for layer in model.model.layers[1:]:  # a buffer; large enough to change choices, and the same in bf16
        layer.mlp.gate.e_score_correction_bias.copy_(torch.tensor([0.5, -0.25, 0.125, -0.5, 0.375, 0.0]))
    return model


def gpt2(**changes):
    shape = dict(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=4, n_positions=40, resid_pdrop=0.0, embd_pdrop=0.0,
                 attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
    return GPT2LMHeadModel(GPT2Config(**(shape | changes)))


# --- what folders look like


def edit_config(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config, indent=2) + "\n")


def edit_tensors(folder, edit):
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
    golden_file.save_safetensors(path, edit(tensors), {"format": "pt"})


def version4(config):
    """The keys of transformers 4, as published files have them."""
    rope_parameters = config.pop("rope_parameters")
    config["rope_theta"] = rope_parameters.pop("rope_theta")
    config["rope_scaling"] = None if rope_parameters["rope_type"] == "default" else rope_parameters
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.40.0"
    config.pop("layer_types", None)


def old_llama2(folder):
    def edit(config):
        version4(config)
        for key in ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias"):
            del config[key]
        config["_name_or_path"] = "somewhere/else"  # unknown keys are the rule
        config["auto_map"] = {"AutoModel": "modeling.Nothing"}

    def add_buffers(tensors):
        for layer in range(SHAPE["num_hidden_layers"]):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.rand(3)
        return tensors

    edit_config(folder, edit)
    edit_tensors(folder, add_buffers)


def linear_of_old(folder):
    def edit(config):
        version4(config)
        config["rope_scaling"] = {"type": "linear", "factor": 4}
        config["rope_theta"] = 100

    edit_config(folder, edit)


def integers_for_floats(folder):
    def edit(config):
        config["attention_dropout"] = 0
        config["rope_parameters"].update(factor=4, rope_theta=1000, beta_fast=4, original_max_position_embeddings=20)

    edit_config(folder, edit)


def published_gpt2(folder):
    """Saved from the bare model by an old version: no prefix, masks, no tie_word_embeddings, n_inner left out."""
    def edit(config):
        for key in ("tie_word_embeddings", "n_inner", "dtype", "add_cross_attention"):
            config.pop(key, None)
        config["n_ctx"] = config["n_positions"]

    def strip(tensors):
        stripped = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        for layer in range(2):
            stripped[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(40, 40)).view(1, 1, 40, 40)[..., :4, :4].clone()
            stripped[f"h.{layer}.attn.masked_bias"] = torch.tensor([-1e4])
        return stripped

    edit_config(folder, edit)
    edit_tensors(folder, strip)


def bare_llama(folder):
    edit_config(folder, version4)
    edit_tensors(folder, lambda tensors: {name.removeprefix("model."): value for name, value in tensors.items()})


def head_alone(folder):
    """Tied, and the one table is stored under the head's name."""
    def rename(tensors):
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
        return tensors

    edit_tensors(folder, rename)


def qwen2_published(folder):
    def edit(config):
        version4(config)
        config.update(sliding_window=4, max_window_layers=1, use_sliding_window=False)

    edit_config(folder, edit)


def version4_folder(folder):
    edit_config(folder, version4)


def version4_experts(folder):
    """Qwen3-MoE by transformers 4: num_experts, which 5 calls num_local_experts in either family."""
    def edit(config):
        version4(config)
        config["num_experts"] = config.pop("num_local_experts")

    edit_config(folder, edit)


# With base 500 and 5 pairs there is a wavelength below, between and above the two limits.
LLAMA3 = rope("llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=60)
# Pairs below, on and above the ramp.
YARN = rope("yarn", 1000.0, factor=4.0, beta_fast=4.0, beta_slow=0.5, original_max_position_embeddings=20)


class Case:
    def __init__(self, model, form=None, dtype=torch.bfloat16, shard="5GB", fused=False):
        self.model, self.form, self.dtype, self.shard = model, form, dtype, shard
        self.fused = fused  # all experts of a layer in one tensor


CASES = {
    "rope_half_split": Case(lambda: llama(num_key_value_heads=4)),
    "rope_linear": Case(lambda: llama(rope_parameters=rope("linear", factor=4.0)), linear_of_old),
    "rope_llama3": Case(lambda: llama(head_dim=10, rope_parameters=LLAMA3, max_position_embeddings=480),
                        version4_folder),
    "rope_yarn": Case(lambda: llama(head_dim=16, rope_parameters=YARN, max_position_embeddings=80), version4_folder),
    "rope_yarn_mscale": Case(lambda: qwen3(head_dim=16, max_position_embeddings=80, rope_parameters=YARN | dict(
        mscale=0.8, mscale_all_dim=0.3, truncate=False))),
    "gqa_grouping": Case(lambda: llama(num_attention_heads=6, num_key_value_heads=2, head_dim=4), dtype=torch.float32),
    "gate_up_order": Case(lambda: llama(intermediate_size=24)),
    "tied_embeddings": Case(lambda: llama(tie_word_embeddings=True)),
    "tied_head_alone": Case(lambda: llama(tie_word_embeddings=True), head_alone),
    "sharded": Case(lambda: llama(), shard="3KB"),
    "old_llama2": Case(lambda: llama(num_key_value_heads=4), old_llama2, dtype=torch.float16),
    "bare_llama": Case(lambda: llama(tie_word_embeddings=True), bare_llama),
    "biases": Case(lambda: llama(attention_bias=True, mlp_bias=True)),
    "integer_floats": Case(lambda: llama(head_dim=16, rope_parameters=YARN, max_position_embeddings=80),
                           integers_for_floats),
    "mistral_window": Case(lambda: mistral(head_dim=8, sliding_window=5), version4_folder),
    "qwen2_unused_window": Case(lambda: qwen2(tie_word_embeddings=True), qwen2_published),
    "qwen2_window": Case(lambda: qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    "qwen2_layer_types": Case(lambda: qwen2(use_sliding_window=True, sliding_window=4, num_hidden_layers=4,
                                            layer_types=["sliding_attention", "full_attention"] * 2)),
    "qk_norm_before_rope": Case(lambda: qwen3(head_dim=10, num_key_value_heads=1)),
    "qwen3_biases": Case(lambda: qwen3(head_dim=6, attention_bias=True)),
    "gpt2_square": Case(lambda: gpt2(n_inner=24), dtype=torch.float32),
    "gpt2_published": Case(lambda: gpt2(n_inner=None), published_gpt2),
    "gpt2_untied_erf": Case(lambda: gpt2(tie_word_embeddings=False, activation_function="gelu", n_inner=40)),
    "mixtral_experts": Case(lambda: mixtral(), version4_folder),
    "mixtral_fused": Case(lambda: mixtral(intermediate_size=12), fused=True),
    "mixtral_window": Case(lambda: mixtral(num_local_experts=3, head_dim=8, intermediate_size=12, sliding_window=5)),
    "qwen3_moe_experts": Case(lambda: qwen3_moe(norm_topk_prob=True, mlp_only_layers=[0]), version4_experts),
    "qwen3_moe_fused": Case(lambda: qwen3_moe(norm_topk_prob=False, num_hidden_layers=4, decoder_sparse_step=2,
                                              head_dim=6, intermediate_size=8, moe_intermediate_size=6), fused=True),
    "latents": Case(lambda: deepseek_v2(attention_bias=True)),
    "latents_yarn": Case(lambda: deepseek_v2(q_lora_rank=None, max_position_embeddings=80, rope_parameters=YARN | dict(
        mscale=0.8, mscale_all_dim=0.7)), version4_folder),
    "latents_bias": Case(lambda: deepseek_v3()),
}
