"""Where golden files live and how they are written and read."""
import argparse
import json
import struct
from pathlib import Path

import safetensors
import torch
import transformers
import yaml

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "golden" / "data"


def output_folder(description):
    """Parses the one option every dump has: the folder to write to."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write to")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save_safetensors(path, tensors, metadata):
    """The library writes its header in an order that changes from run to run; a committed file should not."""
    names = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32", torch.bfloat16: "BF16",
             torch.float16: "F16"}
    header, pieces, offset = {"__metadata__": dict(sorted(metadata.items()))}, [], 0
    # Wide elements first keeps all of them aligned.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        piece = tensor.detach().contiguous()
        piece = (piece.view(torch.int16) if piece.dtype == torch.bfloat16 else piece).numpy().tobytes()
        span = [offset, offset + len(piece)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        pieces.append(piece)
        offset += len(piece)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def write(folder, name, tensors, config, notes):
    """Writes NAME.safetensors and, beside it, the same model in this project's config keys."""
    metadata = {"format": "pt", "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    metadata.update({key: str(value) for key, value in notes.items()})
    path = folder / f"{name}.safetensors"
    save_safetensors(path, tensors, metadata)
    head = f"# Written by tools/reference/{notes['script']} together with {name}.safetensors.\n"
    body = yaml.safe_dump(config, sort_keys=False)
    (folder / f"{name}.yaml").write_text(head + body)
    print(f"{name:20} {path.stat().st_size / 1000:7.1f} kB  {len(tensors)} tensors")


def read(folder, name):
    """Returns tensors, metadata and config of NAME."""
    path = folder / f"{name}.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        metadata = file.metadata()
    return tensors, metadata, yaml.safe_load((folder / f"{name}.yaml").read_text())


def model_config(hf):
    """The model section for a transformers configuration, in this project's keys."""
    if hf.model_type == "gpt2":
        return gpt2_config(hf)
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    rope = dict(hf.rope_parameters)
    model = {
        "arch": hf.model_type,
        "num_layers": hf.num_hidden_layers,
        "hidden_size": hf.hidden_size,
        "ffn_hidden_size": hf.intermediate_size,
        "num_attention_heads": hf.num_attention_heads,
        "num_query_groups": hf.num_key_value_heads,
        "kv_channels": head_dim,
        "vocab_size": hf.vocab_size,
        "max_position_embeddings": hf.max_position_embeddings,
        "normalization": "RMSNorm",
        "layernorm_epsilon": hf.rms_norm_eps,
        "activation": "swiglu",
        "position_embedding_type": "rope",
        "rotary_base": rope.pop("rope_theta"),
        "rotary_percent": 1.0,
        "add_bias_linear": False,
        "add_qkv_bias": hf.model_type == "qwen2",
        "qk_layernorm": hf.model_type in ("qwen3", "qwen3_moe"),
        "untie_embeddings_and_output_weights": not hf.tie_word_embeddings,
    }
    kind = rope.pop("rope_type")
    if hf.model_type.startswith("deepseek"):
        del model["kv_channels"], model["num_query_groups"]
        model.update(deepseek_config(hf, rope))
    elif kind != "default":
        model["rope_scaling"] = {"type": kind, **rope}
    model.update(window_config(hf))
    if hf.model_type in ("mixtral", "qwen3_moe"):
        model["moe"] = moe_config(hf)
    return model


def moe_config(hf):
    """Mixtral: the weights of the chosen experts always add up to 1. Neither has a loss of balance here."""
    moe = {"num_experts": hf.num_local_experts, "router_topk": hf.num_experts_per_tok, "aux_loss_coeff": 0.0}
    if hf.model_type == "mixtral":
        return moe | {"ffn_hidden_size": hf.intermediate_size, "router_pre_softmax": False}
    return moe | {"ffn_hidden_size": hf.moe_intermediate_size, "router_pre_softmax": not hf.norm_topk_prob,
                  "decoder_sparse_step": hf.decoder_sparse_step, "mlp_only_layers": list(hf.mlp_only_layers)}


def deepseek_config(hf, yarn):
    """Latent attention and the experts behind the first layers; `yarn` is empty where nothing is scaled."""
    v3 = hf.model_type == "deepseek_v3"
    names = {"factor": "rotary_scaling_factor"}
    mla = {"q_lora_rank": hf.q_lora_rank or 0, "kv_lora_rank": hf.kv_lora_rank, "qk_head_dim": hf.qk_nope_head_dim,
           "qk_pos_emb_head_dim": hf.qk_rope_head_dim, "v_head_dim": hf.v_head_dim}
    mla |= {names.get(key, key): value for key, value in yarn.items()}
    moe = {"num_experts": hf.n_routed_experts, "ffn_hidden_size": hf.moe_intermediate_size,
           "first_k_dense": hf.first_k_dense_replace, "router_topk": hf.num_experts_per_tok,
           "router_topk_scaling_factor": hf.routed_scaling_factor, "router_enable_expert_bias": False,
           "shared_expert_intermediate_size": hf.n_shared_experts * hf.moe_intermediate_size, "aux_loss_coeff": 0.0}
    if v3:
        moe |= {"router_num_groups": hf.n_group, "router_group_topk": hf.topk_group}
    return {"multi_latent_attention": True, "rotary_interleaved": True, "mla": mla, "moe": moe}


def window_config(hf):
    """Mistral and Mixtral: the window holds everywhere. Qwen: only if switched on, and from max_window_layers upwards."""
    window = getattr(hf, "sliding_window", None)
    if not window:
        return {}
    if hf.model_type in ("mistral", "mixtral"):
        return {"window_size": window}
    return {"window_size": window, "max_window_layers": hf.max_window_layers}


def gpt2_config(hf):
    return {
        "arch": "gpt",
        "num_layers": hf.n_layer,
        "hidden_size": hf.n_embd,
        "ffn_hidden_size": hf.n_inner,
        "num_attention_heads": hf.n_head,
        "vocab_size": hf.vocab_size,
        "max_position_embeddings": hf.n_positions,
        "normalization": "LayerNorm",
        "layernorm_epsilon": hf.layer_norm_epsilon,
        "activation": {"gelu_new": "gelu_tanh", "gelu": "gelu"}[hf.activation_function],
        "position_embedding_type": "learned_absolute",
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "untie_embeddings_and_output_weights": not hf.tie_word_embeddings,
    }
