#!/usr/bin/env python3
"""The roof of a training step on a GPU: its bare matrix products, attention and memory traffic, and nothing else.

Runs, through PyTorch, what no implementation of the step can leave out: every matrix product of forward and backward
(bf16, fp32 sums), attention forward and backward (cuDNN), and a copy that moves as many bytes as the memory-bound work
must at least, interleaved as in a step so that all of it meets the same clocks and power. Prints one JSON line.
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_llama import PRESETS, SHAPE


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="llama-1b", choices=PRESETS)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--mbs", type=int, default=4)
    parser.add_argument("--accum", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--peak", type=float, default=989e12)
    config = parser.parse_args()
    for name, value in zip(SHAPE, PRESETS[config.preset]):
        setattr(config, name, value)
    return config


class Products:
    """The three GEMMs of a linear layer [tokens,in] -> [tokens,out]: forward, input gradient, weight gradient."""

    def __init__(self, tokens, inputs, outputs):
        self.x, self.w, self.dy = (torch.randn(shape, device="cuda", dtype=torch.bfloat16)
                                   for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs)))
        self.dx, self.y, self.dw = torch.empty_like(self.x), torch.empty_like(self.dy), torch.empty_like(self.w)

    def run(self):
        torch.mm(self.x, self.w.T, out=self.y)
        torch.mm(self.dy, self.w, out=self.dx)
        torch.mm(self.dy.T, self.x, out=self.dw)


class Attention:
    def __init__(self, c):
        d = c.hidden // c.heads
        make = lambda heads: torch.randn(c.mbs, c.seq, heads, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        self.q, self.k, self.v, self.dout = make(c.heads), make(c.kv), make(c.kv), make(c.heads)
        for tensor in (self.q, self.k, self.v):
            tensor.requires_grad_()
        self.gqa = c.kv != c.heads

    def run(self):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=True, enable_gqa=self.gqa)
        torch.autograd.grad(out, (self.q, self.k, self.v), self.dout)


def memory_bound_bytes(c):
    """Per layer and microbatch, read and written once each: two norms, RoPE on q and k, the activation; bf16."""
    tokens, d = c.mbs * c.seq, c.hidden // c.heads
    norms = 2 * (2 + 4) * c.hidden              # forward x, y; backward dy, x, residual, dx
    rope = 2 * 2 * (c.heads + c.kv) * d         # in place, forward and backward
    activation = (3 + 5) * c.ffn                # forward gate, up, y; backward dy, gate, up, dgate, dup
    return 2 * tokens * (norms + rope + activation)


def main():
    c = parse_arguments()
    tokens, d = c.mbs * c.seq, c.hidden // c.heads
    chunk = min(tokens, 8192)
    qkv, out = Products(tokens, c.hidden, (c.heads + 2 * c.kv) * d), Products(tokens, c.hidden, c.hidden)
    up, down = Products(tokens, c.hidden, 2 * c.ffn), Products(tokens, c.ffn, c.hidden)
    head, attention = Products(chunk, c.hidden, c.vocab), Attention(c)
    layer_params = c.hidden * ((c.heads + 2 * c.kv) * d + c.hidden + 3 * c.ffn)
    params = c.layers * layer_params + 2 * c.vocab * c.hidden
    source = torch.empty(memory_bound_bytes(c) // 2, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    optimizer_bytes = params * (4 * 4 + 3 * 4 + 2 + 4)  # AdamW, bf16 copy; the norm's pass
    logit_bytes = 2 * 2 * chunk * c.vocab

    def copy(count):  # `count` bytes read and written in all
        while count > 0:
            part = min(count // 2, source.numel())
            target[:part].copy_(source[:part])
            count -= 2 * max(part, 1)

    def step():
        for _ in range(c.accum):
            for _ in range(c.layers):
                for part in (qkv, attention, out, up, down):
                    part.run()
                copy(memory_bound_bytes(c))
            for _ in range(tokens // chunk):
                head.run()
                copy(logit_bytes)
        copy(optimizer_bytes)

    times = []
    for _ in range(c.steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    step_ms = statistics.median(times[len(times) // 3:])
    matmul = c.layers * layer_params + c.vocab * c.hidden
    flops = tokens * c.accum * (6 * matmul + 6 * c.layers * c.seq * c.hidden)
    print(json.dumps({"peer": "roof, torch " + torch.__version__, "preset": c.preset, "step_ms": round(step_ms, 2),
                      "step_ms_all": [round(time, 2) for time in times],
                      "tokens_per_s": round(tokens * c.accum / step_ms * 1e3, 1),
                      "mfu": round(flops / step_ms * 1e3 / c.peak, 4)}))


if __name__ == "__main__":
    main()
