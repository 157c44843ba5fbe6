#!/usr/bin/env python3
"""Dumps 200 training steps of a small Llama, made with transformers and torch.optim.AdamW in fp32.

train200.safetensors holds the initial weights, `tokens` [200,GB,S+1] (inputs are all but the last, targets all but the
first), and per step `losses` (mean over the tokens of the global batch, before the update), `grad_norms` (before
clipping) and `lrs` (used by that step's update), F64 [200] each. train200.yaml is the run in this project's keys.

The learning rate follows Megatron-LM: its scheduler starts at 0 steps and advances after each update, so update k
(counted from 1) uses schedule(k - 1). schedule(n) is lr * n / 20 for n <= 20, then
min_lr + (lr - min_lr) * (1 + cos(pi * r)) / 2 with r = (n - 20) / (200 - 20). The first update therefore changes
nothing.
"""
import argparse
import math
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import golden_file

STEPS, WARMUP = 200, 20
GLOBAL_BATCH, MICRO_BATCH, SEQUENCE, VOCABULARY = 8, 4, 32, 128
LR, MIN_LR, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 3e-4, 3e-5, (0.9, 0.95), 1e-8, 0.1, 1.0
RULE = "update k (from 1) uses schedule(k-1), as in Megatron-LM: the scheduler steps after the optimizer"


def schedule(steps):
    if steps <= WARMUP:
        return LR * steps / WARMUP
    ratio = (steps - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * ratio))


def make_model(generator):
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=SEQUENCE,
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False,
                         rms_norm_eps=1e-5, attention_dropout=0.0, use_cache=False, bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).float().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model, config


def make_optimizer(model):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    free = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPSILON)


def draw_tokens(text, generator):
    """Random pieces of the text, as ASCII codes."""
    codes = torch.tensor(list(text.encode("ascii")))
    starts = torch.randint(len(codes) - SEQUENCE, (STEPS, GLOBAL_BATCH), generator=generator)
    return codes[starts[..., None] + torch.arange(SEQUENCE + 1)]


def train_step(model, optimizer, tokens, lr):
    """One update from tokens [GB,S+1]; returns the loss and the gradient norm."""
    total = 0.0
    for part in tokens.split(MICRO_BATCH):
        logits = model(input_ids=part[:, :-1]).logits
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none")
        (losses.sum() / (GLOBAL_BATCH * SEQUENCE)).backward()
        total += float(losses.detach().double().sum()) / (GLOBAL_BATCH * SEQUENCE)
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    coefficient = CLIP / (norm + 1e-6)
    if coefficient < 1:
        for parameter in model.parameters():
            parameter.grad.mul_(coefficient)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total, norm


def run_config(hf):
    model = golden_file.model_config(hf) | {"make_vocab_size_divisible_by": 1}
    return {
        "model": model,
        "train": {"train_iters": STEPS, "seq_length": SEQUENCE, "micro_batch_size": MICRO_BATCH,
                  "global_batch_size": GLOBAL_BATCH},
        "optimizer": {"optimizer": "adam", "lr": LR, "min_lr": MIN_LR, "adam_beta1": BETAS[0], "adam_beta2": BETAS[1],
                      "adam_eps": EPSILON, "weight_decay": WEIGHT_DECAY, "clip_grad": CLIP},
        "scheduler": {"lr_decay_style": "cosine", "lr_warmup_iters": WARMUP, "lr_decay_iters": STEPS},
        "tokenizer": {"tokenizer_type": "NullTokenizer"},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=golden_file.DATA, help="folder to write to")
    parser.add_argument("--text", type=Path, default=golden_file.ROOT / "LICENSE", help="ASCII text to train on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(200)
    model, hf = make_model(generator)
    tokens = draw_tokens(arguments.text.read_text(), generator)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = make_optimizer(model)
    lrs = [schedule(step) for step in range(STEPS)]
    history = [train_step(model, optimizer, tokens[step], lrs[step]) for step in range(STEPS)]
    losses, norms = zip(*history)
    series = {"losses": losses, "grad_norms": norms, "lrs": lrs}
    tensors = weights | {"tokens": tokens.int()}
    tensors |= {key: torch.tensor(value, dtype=torch.float64) for key, value in series.items()}
    golden_file.write(arguments.output, "train200", tensors, run_config(hf),
                      {"script": "dump_training.py", "attention": "eager", "dtype": "float32", "lr_rule": RULE})
    clipped = sum(norm > CLIP for norm in norms)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; gradient norm {min(norms):.3f} to {max(norms):.3f}, "
          f"clipped in {clipped} steps")


if __name__ == "__main__":
    main()
