#!/usr/bin/env python3
"""Dumps logits, loss and every gradient of small random transformers models, one file per case.

Each case is NAME.safetensors with the weights under their Hugging Face names (a tied head is not repeated), `tokens`
[B,S], `targets` [B,S] (-1: not counted), `logits` [B,S,V], `loss` [1] in F64 (mean over counted targets) and
`grad.<parameter>` for every parameter; NAME.yaml beside it holds the model in this project's config keys. Experts have
a tensor each, as published files have it.

Norm weights and biases are random too: ones and zeros would hide mistakes.
"""
import torch
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

import golden_file
from small_models import randomise, rope

BATCH, SEQUENCE, VOCABULARY = 2, 32, 61
SHAPE = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=40, rms_norm_eps=1e-5, attention_dropout=0.0, bos_token_id=None, eos_token_id=None)
SMALL = dict(hidden_size=16, intermediate_size=12)  # experts are many


def llama(**changes):
    shape = SHAPE | dict(num_key_value_heads=4, tie_word_embeddings=False, rope_parameters=rope()) | changes
    return LlamaForCausalLM, LlamaConfig(**shape)


def mistral(**changes):
    return MistralForCausalLM, MistralConfig(**(SHAPE | dict(tie_word_embeddings=False) | changes))


def qwen2(**changes):
    return Qwen2ForCausalLM, Qwen2Config(**(SHAPE | dict(num_key_value_heads=2, rope_parameters=rope()) | changes))


def qwen3(**changes):
    return Qwen3ForCausalLM, Qwen3Config(**(SHAPE | dict(tie_word_embeddings=False) | changes))


def mixtral(**changes):
    shape = dict(num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=rope(), num_local_experts=4,
                 num_experts_per_tok=2, router_aux_loss_coef=0.0)
    return MixtralForCausalLM, MixtralConfig(**(SHAPE | SMALL | shape | changes))


def qwen3_moe(**changes):
    shape = dict(num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=rope(), num_experts=6, head_dim=6,
                 num_experts_per_tok=3, moe_intermediate_size=10, router_aux_loss_coef=0.0)
    return Qwen3MoeForCausalLM, Qwen3MoeConfig(**(SHAPE | SMALL | shape | changes))


# A dense layer, then one with experts. No bias of experts: it is all zeros, and no parameter.
LATENT = dict(num_key_value_heads=4, tie_word_embeddings=False, first_k_dense_replace=1, n_routed_experts=8,
              num_experts_per_tok=3, moe_intermediate_size=8, kv_lora_rank=10, qk_nope_head_dim=10, qk_rope_head_dim=8,
              v_head_dim=12, num_mtp_layers=0)


def deepseek_v3(**changes):
    shape = SHAPE | SMALL | LATENT | dict(q_lora_rank=14, n_group=4, topk_group=2, n_shared_experts=1) | changes
    return DeepseekV3ForCausalLM, DeepseekV3Config(**shape)


def deepseek_v2(**changes):
    shape = SHAPE | SMALL | LATENT | dict(q_lora_rank=None, n_shared_experts=2, topk_method="greedy") | changes
    shape.pop("num_mtp_layers")
    return DeepseekV2ForCausalLM, DeepseekV2Config(**shape)


def gpt2():
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_inner=96, n_positions=40,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_new",
                        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)
    return GPT2LMHeadModel, config


# With base 500 and 8 pairs the wavelengths are 6.3, 13.7, 29.7, 64.6, ...: two below 60/4, one between, the rest above.
LLAMA3 = rope("llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=60)
# The ramp runs from pair 1 to pair 4 of 8, so all three parts of it are there.
YARN = rope("yarn", 1000.0, factor=4.0, beta_fast=4.0, beta_slow=0.5, original_max_position_embeddings=64)
YARN_MSCALE = YARN | dict(mscale=0.8, mscale_all_dim=0.3, truncate=False)

CASES = {
    "gpt2": gpt2,
    "llama2": llama,
    "llama3": lambda: llama(num_key_value_heads=2, head_dim=16, rope_parameters=LLAMA3, max_position_embeddings=480),
    "llama_linear": lambda: llama(num_key_value_heads=2, tie_word_embeddings=True,
                                  rope_parameters=rope("linear", factor=4.0)),
    "llama_yarn": lambda: llama(num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, rope_parameters=YARN,
                                max_position_embeddings=256),
    "llama_yarn_mscale": lambda: llama(num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
                                       rope_parameters=YARN_MSCALE, max_position_embeddings=256, num_hidden_layers=1),
    "mistral": lambda: mistral(num_key_value_heads=2, head_dim=12, sliding_window=7, rope_parameters=rope()),
    "qwen2": lambda: qwen2(tie_word_embeddings=True),
    "qwen2_window": lambda: qwen2(tie_word_embeddings=False, use_sliding_window=True, sliding_window=9,
                                  max_window_layers=1, num_hidden_layers=3, intermediate_size=36),
    "qwen3": lambda: qwen3(num_key_value_heads=1, head_dim=16, rope_parameters=rope()),
    "mixtral": mixtral,
    "qwen3_moe": lambda: qwen3_moe(norm_topk_prob=True, mlp_only_layers=[0]),
    "qwen3_moe_scores": lambda: qwen3_moe(norm_topk_prob=False, num_hidden_layers=1),
    "deepseek_v3": lambda: deepseek_v3(rope_parameters=YARN | dict(mscale=0.8, mscale_all_dim=0.3),
                                       max_position_embeddings=256),
    "deepseek_v2": lambda: deepseek_v2(rope_parameters=rope()),
}
PADDED = {"gpt2", "llama3", "qwen2", "mistral"}  # 61 rows become 64: padding must change nothing


def draw_tokens(generator):
    drawn = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
    tokens, targets = drawn[:, :-1], drawn[:, 1:].clone()
    targets[0, 0] = targets[0, 13] = -1
    targets[1, 20:25] = -1
    targets[1, -1] = -1
    return tokens, targets


def published(tensors, family):
    """Experts one by one, under the names of published files."""
    mixtral = family is MixtralForCausalLM
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name, tensor in tensors.items():
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        for expert, value in enumerate(tensor if ".experts." in name else ()):
            at = name[:name.index(".experts.")] + f".experts.{expert}."
            halves = value.chunk(2) if name.endswith("gate_up_proj") else (value,)
            out |= {f"{at}{part}.weight": half for part, half in zip((gate, up) if len(halves) == 2 else (down,), halves)}
        if ".experts." not in name:
            out[name] = tensor
    return out


def dump(folder, name, seed):
    torch.manual_seed(seed)
    family, config = CASES[name]()
    config.use_cache = False
    config._attn_implementation = config._experts_implementation = "eager"
    model = family(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    tokens, targets = draw_tokens(generator)

    logits = model(input_ids=tokens).logits
    # The logits stay fp32 and only the last step is taken in fp64, so that `loss` has digits to compare.
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten(), ignore_index=-1)
    loss.backward()

    tensors = published(dict(model.named_parameters()), family)
    gradients = published({key: value.grad for key, value in model.named_parameters()}, family)
    tensors |= {"grad." + key: value for key, value in gradients.items()}
    tensors |= {"tokens": tokens.int(), "targets": targets.int(), "logits": logits, "loss": loss.reshape(1)}
    model_section = golden_file.model_config(config)
    model_section["make_vocab_size_divisible_by"] = 8 if name in PADDED else 1
    train = {"seq_length": SEQUENCE, "micro_batch_size": BATCH, "global_batch_size": BATCH, "train_iters": 1}
    sections = {"model": model_section, "train": train, "optimizer": {"lr": 3e-4},
                "tokenizer": {"tokenizer_type": "NullTokenizer"}}
    golden_file.write(folder, name, tensors, sections,
                      {"script": "dump_hf.py", "seed": seed, "attention": "eager", "dtype": "float32"})


def main():
    folder = golden_file.output_folder(__doc__.splitlines()[0])
    torch.set_num_threads(1)  # sums in one order on every machine with the same library
    for seed, name in enumerate(CASES, start=100):
        dump(folder, name, seed)


if __name__ == "__main__":
    main()
