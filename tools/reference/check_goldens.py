#!/usr/bin/env python3
"""Checks the golden files with a second, separate implementation.

It reads only NAME.yaml (this project's config keys) and NAME.safetensors, computes the model in fp64 with its own
forward pass and autograd, and compares logits, loss and every gradient. So it also proves that the YAML says what the
file holds. Then it changes one key at a time and demands that the result moves: a golden that cannot tell is no test.
"""
import argparse
import copy
import math
from pathlib import Path

import torch
import torch.nn.functional as F

import golden_file

TOLERANCE = 1e-5     # max absolute difference over max absolute value; the C++ tests allow 1e-4
VISIBLE = 5e-4       # a wrong key must move the logits or a gradient this much: five times what the tests allow

WRONG = {            # case -> changes that must be seen
    "gpt2": [{"activation": "gelu"}, {"layernorm_epsilon": 0.1}],
    "llama2": [{"rotary_base": 10000.0}, {"layernorm_epsilon": 0.1}],
    "llama3": [{"rope_scaling": None}, {"rope_scaling.low_freq_factor": 0.5}, {"rope_scaling.high_freq_factor": 8.0},
               {"wrong_head_order": True}],
    "llama_linear": [{"rope_scaling": None}],
    "llama_yarn": [{"rope_scaling": None}, {"rope_scaling.beta_fast": 32.0}, {"rope_scaling.beta_slow": 1.5},
                   {"rope_scaling.attention_factor": 1.0}],
    "llama_yarn_mscale": [{"rope_scaling.truncate": True}, {"rope_scaling.mscale": 0.0},
                          {"rope_scaling.mscale_all_dim": 0.5}],
    "mistral": [{"window_size": 0}, {"window_size": 6}, {"window_size": 8}],
    "qwen2": [{"add_qkv_bias": False}],
    "qwen2_window": [{"window_size": 0}, {"max_window_layers": 0}, {"max_window_layers": 2}],
    "qwen3": [{"qk_layernorm": False}],
    "mixtral": [{"moe.router_pre_softmax": True}, {"moe.router_topk": 3}],
    "qwen3_moe": [{"moe.router_pre_softmax": True}, {"moe.router_topk": 2}, {"qk_layernorm": False}],
    "qwen3_moe_scores": [{"moe.router_pre_softmax": False}],
}


def frequencies(model):
    """Angles per position [D/2] and the factor on cos and sin."""
    size, base, scaling = model["kv_channels"], model["rotary_base"], model.get("rope_scaling")
    plain = [base ** (-2 * i / size) for i in range(size // 2)]
    if not scaling:
        return plain, 1.0
    factor = scaling["factor"]
    if scaling["type"] == "linear":
        return [f / factor for f in plain], 1.0
    context = scaling["original_max_position_embeddings"]
    if scaling["type"] == "llama3":
        return [llama3_frequency(f, scaling, context) for f in plain], 1.0
    return yarn_frequencies(plain, size, base, scaling, context), yarn_magnitude(scaling)


def llama3_frequency(f, scaling, context):
    low, high, turns = scaling["low_freq_factor"], scaling["high_freq_factor"], context * f / (2 * math.pi)
    if turns > high:
        return f
    if turns < low:
        return f / scaling["factor"]
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * f / scaling["factor"] + smooth * f


def yarn_frequencies(plain, size, base, scaling, context):
    def pair_that_turns(times):
        return size * math.log(context / (2 * math.pi * times)) / (2 * math.log(base))

    first, last = pair_that_turns(scaling["beta_fast"]), pair_that_turns(scaling["beta_slow"])
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    ramp = [min(max((i - first) / (last - first), 0), 1) for i in range(len(plain))]
    return [r * f / scaling["factor"] + (1 - r) * f for r, f in zip(ramp, plain)]


def yarn_magnitude(scaling):
    def grow(weight):
        return 0.1 * weight * math.log(scaling["factor"]) + 1

    if scaling.get("attention_factor"):
        return scaling["attention_factor"]
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return grow(scaling["mscale"]) / grow(scaling["mscale_all_dim"])
    return grow(1)


def rotate(x, model):  # x [B,heads,S,D]
    angles, magnitude = frequencies(model)
    angle = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), torch.tensor(angles, dtype=x.dtype))
    cos, sin = angle.cos() * magnitude, angle.sin() * magnitude
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(q, k, v, window, wrong_head_order=False):  # q [B,N,S,D]  k,v [B,G,S,D]
    length, share = q.shape[2], q.shape[1] // k.shape[1]
    if wrong_head_order:
        k, v = k.repeat(1, share, 1, 1), v.repeat(1, share, 1, 1)
    else:
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = (j <= i) & ((j > i - window) if window else True)
    out = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
    return out.transpose(1, 2).flatten(2)


def split_heads(x, heads):
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def rms(x, weight, epsilon):
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def layer_norm(x, weight, bias, epsilon):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight + bias


def gated(x, gate, up, down):
    g = x @ gate.T
    return (g * g.sigmoid() * (x @ up.T)) @ down.T


def feed_forward(model, w, at, layer, x):
    """Of a layer with experts every expert works on every token, and counts nothing where it was not chosen."""
    moe = model.get("moe")
    if not moe or layer in moe.get("mlp_only_layers", ()) or (layer + 1) % moe.get("decoder_sparse_step", 1):
        return gated(x, *(w[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")))
    mixtral = model["arch"] == "mixtral"
    at += "block_sparse_moe." if mixtral else "mlp."
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    scores = (x @ w[at + "gate.weight"].T).softmax(-1)
    least = scores.sort(-1, descending=True).values[..., moe["router_topk"] - 1, None]
    weights = scores * (scores >= least)
    if not moe["router_pre_softmax"]:
        weights = weights / weights.sum(-1, keepdim=True)
    return sum(weights[..., e, None] * gated(x, *(w[f"{at}experts.{e}.{name}.weight"] for name in names))
               for e in range(moe["num_experts"]))


def llama_like(model, w, tokens):
    epsilon, heads = model["layernorm_epsilon"], model["num_attention_heads"]
    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(model["num_layers"]):
        at = f"model.layers.{layer}."
        attention = at + "self_attn."
        normed = rms(x, w[at + "input_layernorm.weight"], epsilon)

        def project(name, count):
            y = normed @ w[attention + name + "_proj.weight"].T
            if model["add_qkv_bias"]:
                y = y + w[attention + name + "_proj.bias"]
            y = split_heads(y, count)
            return rms(y, w[attention + name + "_norm.weight"], epsilon) if model["qk_layernorm"] and name != "v" else y

        q, k, v = project("q", heads), project("k", model["num_query_groups"]), project("v", model["num_query_groups"])
        window = model.get("window_size", 0) if layer >= model.get("max_window_layers", 0) else 0
        mixed = attend(rotate(q, model), rotate(k, model), v, window, "wrong_head_order" in model)
        x = x + mixed @ w[attention + "o_proj.weight"].T
        normed = rms(x, w[at + "post_attention_layernorm.weight"], epsilon)
        x = x + feed_forward(model, w, at, layer, normed)
    head = "lm_head" if model["untie_embeddings_and_output_weights"] else "model.embed_tokens"
    return rms(x, w["model.norm.weight"], epsilon) @ w[head + ".weight"].T


def gpt(model, w, tokens):
    epsilon, heads = model["layernorm_epsilon"], model["num_attention_heads"]
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for layer in range(model["num_layers"]):
        at = f"transformer.h.{layer}."

        def norm(y, name):
            return layer_norm(y, w[at + name + ".weight"], w[at + name + ".bias"], epsilon)

        def linear(y, name):  # [in,out]
            return y @ w[at + name + ".weight"] + w[at + name + ".bias"]

        q, k, v = (split_heads(part, heads) for part in linear(norm(x, "ln_1"), "attn.c_attn").chunk(3, -1))
        x = x + linear(attend(q, k, v, 0), "attn.c_proj")
        inner = linear(norm(x, "ln_2"), "mlp.c_fc")
        if model["activation"] == "gelu_tanh":
            inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        else:
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
        x = x + linear(inner, "mlp.c_proj")
    normed = layer_norm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], epsilon)
    return normed @ w["transformer.wte.weight"].T


def compute(model, tensors):
    """Returns logits, loss and gradients by name, all fp64."""
    outputs = ("tokens", "targets", "logits", "loss")
    names = [name for name in tensors if name not in outputs and not name.startswith("grad.")]
    weights = {name: tensors[name].double().requires_grad_() for name in names}
    logits = (gpt if model["arch"] == "gpt" else llama_like)(model, weights, tensors["tokens"].long())
    chosen = logits.log_softmax(-1).gather(-1, tensors["targets"].long().clamp(min=0)[..., None])[..., 0]
    counted = tensors["targets"] >= 0
    loss = -(chosen * counted).sum() / counted.sum()
    loss.backward()
    return {"logits": logits.detach(), "loss": loss.detach().reshape(1)} | {
        "grad." + name: weight.grad for name, weight in weights.items() if weight.grad is not None}


def distance(got, tensors):
    """The largest relative difference of any output, and which."""
    worst, where = 0.0, ""
    for name, value in got.items():
        wanted = tensors[name].double()
        difference = float((value - wanted).abs().max() / wanted.abs().max())
        worst, where = max((worst, where), (difference, name))
    return worst, where


def changed(model, change):
    model = copy.deepcopy(model)
    for key, value in change.items():
        *path, last = key.split(".")
        section = model
        for step in path:
            section = section[step]
        section[last] = value
    return model


def check(folder, name):
    tensors, _, config = golden_file.read(folder, name)
    model = config["model"]
    got = compute(model, tensors)
    expected = {key for key in tensors if key.startswith("grad.")} | {"logits", "loss"}
    assert set(got) == expected, f"{name}: {set(got) ^ expected}"
    smallest = min(float(tensors[key].abs().max()) for key in expected)
    worst, where = distance(got, tensors)
    size = f"loss {float(got['loss']):.4f}, smallest max |gradient| {smallest:.1e}"
    print(f"{name:18} worst {worst:.1e} ({where}), {size}")
    assert worst < TOLERANCE, f"{name}: {where} differs by {worst}"
    for change in WRONG[name]:
        moved, where = distance(compute(changed(model, change), tensors), tensors)
        print(f"{'':18}   with {change}: {moved:.1e}")
        assert moved > VISIBLE, f"{name}: nobody would notice {change}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=golden_file.DATA)
    folder = parser.parse_args().data
    torch.set_num_threads(1)
    for name in WRONG:
        check(folder, name)


if __name__ == "__main__":
    main()
