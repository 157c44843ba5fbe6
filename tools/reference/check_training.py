#!/usr/bin/env python3
"""Replays train200 in fp64 with the forward pass of check_goldens.py and a hand-written AdamW.

The distance between the two runs is what rounding alone does; the C++ test allows 1e-3.
"""
import argparse
import math
from pathlib import Path

import torch

import check_goldens
import golden_file

TOLERANCE = 1e-4
SERIES = ("tokens", "losses", "grad_norms", "lrs")


def gradients(model, weights, tokens):
    """Loss and gradients over one whole global batch: accumulation must not matter."""
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    logits = check_goldens.llama_like(model, leaves, tokens[:, :-1])
    loss = -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()
    loss.backward()
    return float(loss.detach()), {name: leaf.grad for name, leaf in leaves.items()}


def adam(options, lr, step, weight, gradient, moments):
    """One AdamW update in place; moments are (first, second)."""
    first, second = moments
    beta1, beta2 = options["adam_beta1"], options["adam_beta2"]
    first.mul_(beta1).add_((1 - beta1) * gradient)
    second.mul_(beta2).add_((1 - beta2) * gradient.square())
    direction = first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + options["adam_eps"])
    decay = options["weight_decay"] if weight.dim() == 2 else 0.0
    weight.sub_(lr * (direction + decay * weight))


def scheduled(options, scheduler, done):
    """The cosine schedule after `done` updates."""
    high, low, warmup = options["lr"], options["min_lr"], scheduler["lr_warmup_iters"]
    if done <= warmup:
        return high * done / warmup
    ratio = (done - warmup) / (scheduler["lr_decay_iters"] - warmup)
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * ratio))


def replay(tensors, config):
    weights = {name: value.double() for name, value in tensors.items() if name not in SERIES}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in weights.items()}
    options = config["optimizer"]
    worst_loss = worst_norm = 0.0
    for step, tokens in enumerate(tensors["tokens"].long(), start=1):
        loss, grads = gradients(config["model"], weights, tokens)
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
        scale = min(options["clip_grad"] / (norm + 1e-6), 1.0)
        lr = scheduled(options, config["scheduler"], step - 1)
        assert math.isclose(lr, float(tensors["lrs"][step - 1]), rel_tol=1e-12, abs_tol=1e-18), f"step {step}: lr {lr}"
        for name, weight in weights.items():
            adam(options, lr, step, weight, scale * grads[name], moments[name])
        worst_loss = max(worst_loss, abs(loss / float(tensors["losses"][step - 1]) - 1))
        worst_norm = max(worst_norm, abs(norm / float(tensors["grad_norms"][step - 1]) - 1))
    return worst_loss, worst_norm


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=golden_file.DATA)
    tensors, _, config = golden_file.read(parser.parse_args().data, "train200")
    torch.set_num_threads(1)
    worst_loss, worst_norm = replay(tensors, config)
    print(f"train200: worst relative difference of a loss {worst_loss:.1e}, of a gradient norm {worst_norm:.1e}")
    assert worst_loss < TOLERANCE and worst_norm < 10 * TOLERANCE


if __name__ == "__main__":
    main()
