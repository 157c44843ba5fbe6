#!/usr/bin/env python3
"""The speed peer of models with experts: a Mixtral or Qwen3-MoE trained with stock PyTorch.

It is what a user would write instead of using this project: rows sorted by expert, torch._grouped_mm over all experts,
every layer and the head compiled, SDPA, fused AdamW, bf16 compute over fp32 weights, gradients and moments on a GPU and
fp32 on a CPU. No size of a group is read by the host. Both routers are timed in turn, step by step, in one process: the
real one, and one that deals tokens out to the experts evenly whatever the scores say. One JSON line for each.

MFU counts 6 FLOPs per matmul parameter that a token passes (its own experts; output head in, input embedding and router
out) plus 6*L*seq*heads*head_dim for causal attention, over --peak.
"""
import argparse, json, math, os, resource, statistics, sys, time
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch, torch.nn as nn, torch.nn.functional as F

SHAPE = ("layers", "hidden", "heads", "kv", "head_dim", "vocab", "experts", "topk", "ffn", "qk_norm", "balance")
PRESETS = {
    "mixtral-2layers": (2, 4096, 32, 8, 128, 32000, 8, 2, 14336, False, 0.02),
    "qwen3-30b-a3b-6layers": (6, 2048, 32, 4, 128, 151936, 128, 8, 768, True, 0.001),
    "tiny-mixtral": (2, 32, 4, 2, 8, 61, 4, 2, 48, False, 0.02),
    "tiny-qwen3": (2, 32, 4, 2, 16, 61, 8, 3, 32, True, 0.001),
}
ROUTERS = ("real", "balanced")


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-5).to(x.dtype)


def rope(x, cos, sin):  # x: b h s d
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def sum_rows(x, inverse, k):
    return x[inverse].view(-1, k, x.shape[1]).sum(1).to(x.dtype)  # autocast would leave it in fp32


class Spread(torch.autograd.Function):
    """Row r is token order[r] // k. Written by hand, with its gradient: autograd would add rows up with atomics."""
    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, dy):
        inverse, = ctx.saved_tensors
        return sum_rows(dy, inverse, ctx.k), None, None, None


class Collect(torch.autograd.Function):
    """The sum of a token's k rows: the gradient of Spread, and the other way round."""
    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(order)
        ctx.k = k
        return sum_rows(x, inverse, k)

    @staticmethod
    def backward(ctx, dy):
        order, = ctx.saved_tensors
        return dy[order // ctx.k], None, None, None


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = nn.Linear(c.hidden, c.experts, bias=False)
        self.up = nn.Parameter(torch.empty(c.experts, 2 * c.ffn, c.hidden))
        self.down = nn.Parameter(torch.empty(c.experts, c.hidden, c.ffn))

    def route(self, x, balanced):
        """Experts and weights [t,k], and the mean scores [experts]."""
        c, scores = self.c, self.router(x).float().softmax(-1)
        even = torch.arange(x.shape[0] * c.topk, device=x.device).view(-1, c.topk) % c.experts
        experts = torch.where(balanced, even, scores.topk(c.topk, -1).indices)
        weights = scores.gather(1, experts)
        return experts, weights / weights.sum(-1, keepdim=True), scores.mean(0)

    def forward(self, x, balanced):
        c = self.c
        experts, weights, mean_scores = self.route(x, balanced)
        chosen, order = experts.flatten().sort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=x.device))
        ends = torch.searchsorted(chosen, torch.arange(c.experts, device=x.device), right=True)
        share = torch.diff(ends, prepend=ends.new_zeros(1)).float() / x.shape[0]
        offs = ends.to(torch.int32)
        rows = Spread.apply(x, order, inverse, c.topk)
        g, u = torch._grouped_mm(rows, self.up.to(x.dtype).transpose(1, 2), offs=offs).chunk(2, -1)
        act = F.silu(g) * u * Spread.apply(weights.view(-1, 1), order, inverse, 1)
        out = torch._grouped_mm(act.to(x.dtype), self.down.to(x.dtype).transpose(1, 2), offs=offs)
        balance = c.balance * c.experts / c.topk * (share * mean_scores).sum()
        return Collect.apply(out, order, inverse, c.topk), balance


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.n1, self.n2 = RMSNorm(c.hidden), RMSNorm(c.hidden)
        self.qkv = nn.Linear(c.hidden, (c.heads + 2 * c.kv) * c.head_dim, bias=False)
        self.o = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.qn, self.kn = (RMSNorm(c.head_dim), RMSNorm(c.head_dim)) if c.qk_norm else (nn.Identity(), nn.Identity())
        self.moe = Moe(c)

    def forward(self, x, cos, sin, balanced):
        c, (b, s, _) = self.c, x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, -1, c.head_dim).transpose(1, 2).split((c.heads, c.kv, c.kv), 1)
        q, k = rope(self.qn(q), cos, sin), rope(self.kn(k), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c.kv != c.heads)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, -1))
        y, balance = self.moe(self.n2(x).view(b * s, -1), balanced)
        return x + y.view(b, s, -1), balance


class Head(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = RMSNorm(c.hidden)
        self.linear = nn.Linear(c.hidden, c.vocab, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.linear(self.norm(x)).flatten(0, 1).float(), labels.flatten())


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(c.vocab, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.head = Head(c)
        for n, p in self.named_parameters():
            if p.dim() > 1:
                shrink = math.sqrt(2 * c.layers) if n.endswith(("o.weight", "down")) else 1
                nn.init.normal_(p, std=0.02 / shrink)

    def forward(self, ids, labels, balanced):
        """The loss of the model, and that of balance."""
        hd, s = self.c.head_dim, ids.shape[1]
        f = 1.0 / 1e6 ** (torch.arange(0, hd, 2, device=ids.device).float() / hd)
        a = torch.outer(torch.arange(s, device=ids.device).float(), f).repeat(1, 2)
        x = self.emb(ids)
        if self.c.dtype == "autocast":
            x = x.to(torch.bfloat16)
        cos, sin = a.cos().to(x.dtype), a.sin().to(x.dtype)
        extra = 0
        for block in self.blocks:
            x, balance = block(x, cos, sin, balanced)
            extra = extra + balance
        return self.head(x, labels), extra


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--preset", default="qwen3-30b-a3b-6layers", choices=PRESETS)
    p.add_argument("--routers", nargs="+", default=list(ROUTERS), choices=ROUTERS)
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--mbs", type=int, default=4)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=8, help="with each router")
    p.add_argument("--warmup", type=int, default=3, help="of these, left out of the median")
    p.add_argument("--dtype", choices=["autocast", "fp32"],
                   help="autocast (default on a GPU): fp32 weights, bf16 compute; fp32 (default on a CPU)")
    p.add_argument("--device", default="cuda")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--peak", type=float, default=989e12)
    p.add_argument("--lr", type=float, default=3e-4)
    c = p.parse_args()
    for k, v in zip(SHAPE, PRESETS[c.preset]):
        setattr(c, k, v)
    if c.dtype is None:
        c.dtype = "fp32" if c.device == "cpu" else "autocast"
    if not 0 <= c.warmup < c.steps:
        p.error(f"--warmup {c.warmup} leaves none of {c.steps} steps to be timed")
    return c


class Trainer:
    def __init__(self, c, m):
        self.c, self.m, self.on_gpu = c, m, c.device == "cuda"
        self.opt = torch.optim.AdamW(m.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.random = torch.Generator().manual_seed(2)
        self.balanced = {r: torch.tensor(r == "balanced", device=c.device) for r in ROUTERS}

    def step(self, router):
        """Seconds, the model's loss, and the largest number of bytes that were allocated."""
        c = self.c
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        t0, total = time.perf_counter(), 0.0
        for _ in range(c.accum):
            ids = torch.randint(c.vocab, (c.mbs, c.seq + 1), generator=self.random).to(c.device)
            with torch.autocast(c.device, torch.bfloat16, enabled=c.dtype == "autocast"):
                loss, balance = self.m(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), self.balanced[router])
            ((loss + balance) / c.accum).backward()
            total += loss.detach() / c.accum
        torch.nn.utils.clip_grad_norm_(self.m.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        loss = float(total)
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - t0, loss, torch.cuda.max_memory_allocated() if self.on_gpu else resident_bytes()

    def first_step(self):
        """Compiles; where that does not work, everything runs as it is written."""
        try:
            self.step(self.c.routers[0])
        except Exception as error:
            if self.c.no_compile:
                raise
            print(f"torch_moe: not compiled: {type(error).__name__}: {str(error)[:2000]}", file=sys.stderr)
            torch.compiler.set_stance("force_eager")
            self.c.no_compile = True
            self.opt.zero_grad(set_to_none=True)
            self.step(self.c.routers[0])


def resident_bytes():
    """The largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def flops_per_token(c):
    layer = c.hidden * c.head_dim * 2 * (c.heads + c.kv) + 3 * c.hidden * c.topk * c.ffn
    return 6 * (c.layers * layer + c.hidden * c.vocab) + 6 * c.layers * c.seq * c.heads * c.head_dim


def main():
    c = parse_arguments()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest" if c.device == "cpu" else "high")
    with torch.device(c.device):
        m = Model(c)
    if not c.no_compile:
        for part in [*m.blocks, m.head]:
            part.compile()
    trainer = Trainer(c, m)
    begin = time.perf_counter()
    trainer.first_step()
    first = time.perf_counter() - begin
    runs = {router: [] for router in c.routers}
    for i in range(c.steps):
        for router in c.routers if i % 2 == 0 else c.routers[::-1]:
            runs[router].append(trainer.step(router))
    tokens = c.mbs * c.accum * c.seq
    for router, steps in runs.items():
        step = statistics.median(seconds for seconds, _, _ in steps[c.warmup:])
        flops = tokens * flops_per_token(c)
        print(json.dumps({
            "peer": "torch " + torch.__version__, "preset": c.preset, "router": router, "seq": c.seq, "mbs": c.mbs,
            "accum": c.accum, "dtype": c.dtype, "compile": not c.no_compile, "first_step_s": round(first, 1),
            "step_ms": round(step * 1e3, 2), "step_ms_all": [round(t * 1e3, 2) for t, _, _ in steps],
            "warmup": c.warmup,
            "tokens_per_s": round(tokens / step, 1), "tflops": round(flops / step / 1e12, 4),
            "mfu": round(flops / step / c.peak, 4), "peak_bytes": max(peak for _, _, peak in steps),
            "parameters": sum(q.numel() for q in m.parameters()), "losses": [round(loss, 4) for _, loss, _ in steps]}))


if __name__ == "__main__":
    main()
