#!/usr/bin/env python3
"""The speed and loss peer: a Llama-style decoder trained with stock PyTorch.

It is what a user would write instead of using this project: torch.compile, SDPA
(cuDNN, flash or the CPU's flash kernel), fused AdamW, bf16 compute on a GPU and
fp32 on a CPU. It prints one JSON line with the median step time, tokens/s, MFU,
the loss and the time of every step, and the peak memory.

MFU counts 6 FLOPs per matmul parameter per token (output head in, input
embedding out) plus 6*L*seq*heads*head_dim for causal attention, over --peak.
"""
import argparse, json, math, resource, statistics, time
import torch, torch.nn as nn, torch.nn.functional as F

SHAPE = ("layers", "hidden", "ffn", "heads", "kv", "vocab")
PRESETS = {
    "tiny": (4, 256, 768, 8, 4, 1024),
    "cpu-a": (4, 256, 688, 4, 4, 512),
    "cpu-b": (12, 768, 2048, 12, 12, 32000),
    "llama-1b": (16, 2048, 8192, 32, 8, 128256),
    "llama-3b": (28, 3072, 8192, 24, 8, 128256),
    "qwen-1.5b": (28, 1536, 8960, 12, 2, 151936),
    "llama-8b": (32, 4096, 14336, 32, 8, 128256),
    "llama-8b-8layers": (8, 4096, 14336, 32, 8, 128256),
}


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-5)


def rope(x, cos, sin):  # x: b h s d, half-rotated as in HF Llama
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.hd = c, c.hidden // c.heads
        self.n1, self.n2 = RMSNorm(c.hidden), RMSNorm(c.hidden)
        self.qkv = nn.Linear(c.hidden, (c.heads + 2 * c.kv) * self.hd, bias=False)
        self.o = nn.Linear(c.hidden, c.hidden, bias=False)
        self.gu = nn.Linear(c.hidden, 2 * c.ffn, bias=False)
        self.down = nn.Linear(c.ffn, c.hidden, bias=False)

    def forward(self, x, cos, sin):
        c, (b, s, _) = self.c, x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, -1, self.hd).transpose(1, 2).split((c.heads, c.kv, c.kv), 1)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c.kv != c.heads)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, -1))
        g, u = self.gu(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(c.vocab, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden)
        self.head = nn.Linear(c.hidden, c.vocab, bias=False)
        if c.tied:
            self.head.weight = self.emb.weight
        for n, p in self.named_parameters():
            if p.dim() == 2:
                shrink = math.sqrt(2 * c.layers) if n.endswith(("o.weight", "down.weight")) else 1
                nn.init.normal_(p, std=0.02 / shrink)

    def forward(self, ids, labels):
        hd, s = self.c.hidden // self.c.heads, ids.shape[1]
        f = 1.0 / 500000 ** (torch.arange(0, hd, 2, device=ids.device).float() / hd)
        a = torch.outer(torch.arange(s, device=ids.device).float(), f).repeat(1, 2)
        x = self.emb(ids)
        if self.c.dtype == "autocast":
            x = x.to(torch.bfloat16)
        cos, sin = a.cos().to(x.dtype), a.sin().to(x.dtype)
        for blk in self.blocks:
            x = blk(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def parse_arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--preset", default="llama-1b", choices=PRESETS)
    for k in SHAPE:
        p.add_argument("--" + k, type=int)
    p.add_argument("--tied", action="store_true", help="one matrix for input embedding and output head")
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--mbs", type=int, default=4)
    p.add_argument("--accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=15)
    p.add_argument("--warmup", type=int, help="steps left out of the median (default: the first third)")
    p.add_argument("--dtype", default="autocast", choices=["autocast", "bf16", "fp32"],
                   help="autocast: fp32 weights, bf16 compute; bf16: everything bf16")
    p.add_argument("--device", default="cuda")
    p.add_argument("--threads", type=int, help="CPU threads inside one operation")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--peak", type=float, default=989e12)
    p.add_argument("--lr", type=float, default=3e-4)
    c = p.parse_args()
    for k, v in zip(SHAPE, PRESETS[c.preset]):
        if getattr(c, k) is None:
            setattr(c, k, v)
    if c.warmup is None:
        c.warmup = c.steps // 3
    return c


def resident_bytes():
    """The largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(c, m):
    """Runs the steps; returns the seconds and the loss of each."""
    run = m if c.no_compile else torch.compile(m)
    opt = torch.optim.AdamW(m.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    sync = torch.cuda.synchronize if c.device == "cuda" else (lambda: None)
    g = torch.Generator().manual_seed(2)
    times, losses = [], []
    for _ in range(c.steps):
        t0 = time.perf_counter()
        total = 0.0
        for _ in range(c.accum):
            ids = torch.randint(c.vocab, (c.mbs, c.seq + 1), generator=g).to(c.device)
            with torch.autocast(c.device, torch.bfloat16, enabled=c.dtype == "autocast"):
                loss = run(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) / c.accum
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(float(total))
        sync()
        times.append(time.perf_counter() - t0)
    return times, losses


def main():
    c = parse_arguments()
    idle = resident_bytes()
    if c.threads:
        torch.set_num_threads(c.threads)
    torch.manual_seed(1)
    # "high" lets a GPU use TF32; a CPU is compared in true fp32.
    torch.set_float32_matmul_precision("highest" if c.device == "cpu" else "high")
    m = Llama(c).to(c.device)
    if c.dtype == "bf16":
        m = m.bfloat16()
    times, losses = train(c, m)
    step = statistics.median(times[c.warmup:])
    tokens = c.mbs * c.accum * c.seq
    matmul = sum(q.numel() for n, q in m.named_parameters() if q.dim() == 2 and not n.startswith("emb"))
    matmul += c.vocab * c.hidden if c.tied else 0  # the one matrix is named emb, and the head still multiplies by it
    flops = tokens * (6 * matmul + 6 * c.layers * c.seq * c.hidden)
    on_gpu = c.device == "cuda"
    print(json.dumps({
        "peer": "torch " + torch.__version__, "preset": c.preset, "layers": c.layers, "seq": c.seq, "mbs": c.mbs,
        "accum": c.accum, "dtype": c.dtype, "compile": not c.no_compile, "threads": torch.get_num_threads(),
        "step_ms": round(step * 1e3, 2), "step_ms_all": [round(t * 1e3, 2) for t in times], "warmup": c.warmup,
        "tokens_per_s": round(tokens / step, 1), "tflops": round(flops / step / 1e12, 4),
        "mfu": round(flops / step / c.peak, 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
        "peak_rss_bytes": resident_bytes(), "idle_rss_bytes": idle,
        "parameters": sum(q.numel() for q in m.parameters()),
        "losses": [round(x, 4) for x in losses[:5] + losses[-1:]]}))


if __name__ == "__main__":
    main()
