#!/usr/bin/env python3
"""Folders made by transformers, read and written by `tera`, and read again by transformers.

For each case of hf_cases.py: `tera logits` gives transformers' logits within 1e-4 of their largest value, on one rank
and cut over several; a folder that went through `tera import` and `tera export` holds every weight bit for bit, and
transformers computes the same logits from it. --write puts the folders under tests/golden/hf with `expected.safetensors`
(`tokens` [B,S], `logits` [B,S,V]).
"""
import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import golden_file
from hf_cases import CASES, VOCABULARY
from small_models import randomise

BATCH, SEQUENCE = 2, 12
LIMIT = 1e-4
LAYOUTS = {"tp2": ["--ranks", "2", "dist.tensor_model_parallel_size=2"],
           "pp2": ["--ranks", "2", "dist.pipeline_model_parallel_size=2"],
           "tp2 pp2": ["--ranks", "4", "dist.tensor_model_parallel_size=2", "dist.pipeline_model_parallel_size=2"]}


def tera(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tera {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager").eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def difference(got, want):
    return ((got - want).abs().max() / want.abs().max()).item() if got.shape == want.shape else float("inf")


def make_folder(folder, case, seed):
    """Saves the model; returns it as transformers reads it back, before the folder gets its older form."""
    torch.manual_seed(seed)
    model = case.model()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    model.to(case.dtype).save_pretrained(folder, max_shard_size=case.shard, save_original_format=not case.fused)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    reference = load(folder)
    rewrite(folder)
    if case.form:
        case.form(folder)
    return reference, tokens


def rewrite(folder):
    """The library's headers change from run to run; committed files should not."""
    for path in folder.glob("*.safetensors"):
        golden_file.save_safetensors(path, load_file(path), {"format": "pt"})


def tera_logits(program, folder, tokens, *layout):
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "logits.safetensors"
        text = ";".join(",".join(map(str, row)) for row in tokens.tolist())
        tera(program, "logits", "--model", folder, "--tokens", text, "--output", out, "--device", "cpu", "--threads", 1,
             *layout)
        return load_file(out)["logits"]


def same_weights(one, other):
    """By name; bit for bit."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def check(program, folder, name, case, reference, tokens):
    want = logits_of(reference, tokens)
    report = {"logits": difference(tera_logits(program, folder, tokens), want),
              "layouts": max(difference(tera_logits(program, folder, tokens, *layout), want)
                             for layout in LAYOUTS.values())}
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, out, small = (Path(scratch) / part for part in ("checkpoint", "out", "small"))
        tera(program, "import", "--model", folder, "--output", checkpoint)
        tera(program, "export", "--model", checkpoint, "--output", out)
        again = load(out)
        report["export"] = difference(logits_of(again, tokens), want)
        report["from checkpoint"] = difference(tera_logits(program, checkpoint, tokens), want)
        if not same_weights(reference, again):
            raise SystemExit(f"{name}: weights did not come back bit for bit")
        tera(program, "export", "--model", checkpoint, "--output", small, "--dtype", "bf16", "--max-shard-size", "4KB")
        rounded = load(small).state_dict()
        if not all(torch.equal(value.bfloat16().float(), rounded[key]) for key, value in reference.state_dict().items()):
            raise SystemExit(f"{name}: --dtype bf16 is not the weights, rounded")
    return tell(name, report)


def tell(name, report):
    wrong = {key: value for key, value in report.items() if not value < LIMIT}
    print(f"{name:22}" + "  ".join(f"{key} {value:.1e}" for key, value in report.items()) + ("  WRONG" if wrong else ""))
    return not wrong


def check_own(program, name, *overrides):
    """A model that was trained here, without any config.json to go by."""
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(5))
    with tempfile.TemporaryDirectory() as scratch:
        saved, out, run = (Path(scratch) / part for part in ("saved", "out", "run"))
        config = golden_file.ROOT / "configs" / "tests" / f"{name}.yaml"
        tera(program, "train", config, "train.train_iters=3", "train.eval_iters=0", "dist.threads=1",
             "model.init_method_std=0.2", f"checkpoint.save={saved}", f"run.dir={run}", *overrides)
        tera(program, "export", "--model", saved, "--output", out, "--max-shard-size", "20KB")
        want = logits_of(load(out), tokens)
        return tell(f"own {name}", {"checkpoint": difference(tera_logits(program, saved, tokens), want),
                                    "exported": difference(tera_logits(program, out, tokens), want)})


OWN = {"tiny": [], "tiny_gpt": [], "tiny_mistral": [], "tiny_qwen2": [], "tiny_qwen3": [], "tiny_mixtral": [],
       "tiny_qwen3_moe": [], "tiny_deepseek_v2": [], "tiny_deepseek_v3": []}


def write_golden(target, folder, reference, tokens):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name != "generation_config.json":
            shutil.copy(path, target)
    golden_file.save_safetensors(target / "expected.safetensors",
                                 {"tokens": tokens.int(), "logits": logits_of(reference, tokens).contiguous()},
                                 {"format": "pt", "transformers": transformers.__version__})


def write_norm(target):
    """RMSNorm in bf16: the normalised value is rounded before the weight is applied."""
    generator = torch.Generator().manual_seed(7)
    norm = LlamaRMSNorm(64, eps=1e-5).to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * torch.randn(64, generator=generator))
        x = torch.randn(32, 64, generator=generator).bfloat16()
        tensors = {"x": x, "weight": norm.weight, "y": norm(x)}
    target.mkdir(parents=True, exist_ok=True)
    golden_file.save_safetensors(target / "expected.safetensors", tensors, {"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tera", default=golden_file.ROOT / "build" / "release" / "bin" / "tera")
    parser.add_argument("--write", action="store_true", help="write the golden folders of the tests")
    parser.add_argument("--only", nargs="*", default=list(CASES), help="cases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    golden = golden_file.ROOT / "tests" / "golden" / "hf"
    good = True
    for seed, (name, case) in enumerate(CASES.items(), start=300):
        if name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            reference, tokens = make_folder(folder, case, seed)
            if options.write:
                write_golden(golden / name, folder, reference, tokens)
            else:
                good = check(options.tera, folder, name, case, reference, tokens) and good
    if options.write:
        write_norm(golden / "norm_cast_order")
    elif options.only == list(CASES):
        good = all([check_own(options.tera, name, *overrides) for name, overrides in OWN.items()]) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
