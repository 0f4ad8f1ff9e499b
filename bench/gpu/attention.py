#!/usr/bin/env python3
"""Attention on a GPU beside the kernels of cuDNN and FlashAttention in the same run.

    attention.py [ROW ...] [--tune] [--beside PROGRAM] [--out FOLDER]

A row is `batch.heads.kv.head.queries.keys`, with `.causal` behind it where queries see no later keys: `8.32.8.128.1.4096` is decoding of
8 sequences, 32 heads over 8 of keys and values. Without one: heads of 64 and 128, as many heads of keys and values or fewer, causal or
not, 512 to 8192 tokens, batches of 1 and 8, and decoding.

Each row is a model of `scaled_dot_product_attention` of f16 tensors, exported by PyTorch's exporter for TorchScript, and compiled in f16
without `--tune`; with --tune by a second plan beside it, with --beside by another build of `orchestrion` as well. The peers are what
`scaled_dot_product_attention` takes from each library. All run by turns: a CUDA graph of one run, replayed after the L2 cache has been
overwritten, by the device's clock. A time is the median over all rounds, in microseconds.

With --out, FOLDER/attention.json and FOLDER/attention.md are written anew after each row.
"""
import json, os, tempfile, time

import contest

#: Batch, heads, heads of keys and values, head dimension, queries, keys, whether it is causal.
ROWS = """
1.16.16.64.512.512.causal 1.16.16.64.2048.2048 1.16.16.64.2048.2048.causal 1.16.16.64.4096.4096 1.16.16.64.8192.8192.causal
8.16.16.64.512.512 8.16.16.64.512.512.causal 1.32.8.64.2048.2048 1.32.8.64.2048.2048.causal
1.16.16.128.512.512.causal 1.16.16.128.2048.2048 1.16.16.128.2048.2048.causal 8.16.16.128.512.512 8.16.16.128.512.512.causal
1.32.8.128.1024.1024.causal 1.32.8.128.2048.2048 1.32.8.128.2048.2048.causal 1.32.8.128.8192.8192.causal 8.32.8.128.1024.1024.causal
8.16.16.64.1.2048 8.32.8.64.1.2048 1.32.8.128.1.4096 8.32.8.128.1.4096 1.16.16.128.1.8192
""".split()
#: Seconds that `--tune` may take for a row.
BUDGET_S = 20


def options():
    parser = contest.arguments(__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--beside", metavar="PROGRAM", help="another build of orchestrion, which takes turns too")
    return contest.parsed(parser)


class Row:
    def __init__(self, text):
        numbers, self.causal = text.removesuffix(".causal"), text.endswith(".causal")
        self.batch, self.heads, self.kv, self.head, self.queries, self.keys = map(int, numbers.split("."))
        self.text = text

    def title(self):
        heads = f"{self.heads}" if self.kv == self.heads else f"{self.heads} over {self.kv}"
        return f"{self.batch}, {heads}, {self.head}, {self.queries} x {self.keys}" + (", causal" if self.causal else "")

    def tensors(self, torch, device):
        torch.manual_seed(0)
        shapes = [(self.heads, self.queries), (self.kv, self.keys), (self.kv, self.keys)]
        return [torch.randn(self.batch, *shape, self.head, dtype=torch.float16, device=device) for shape in shapes]

    def attention(self, torch):
        """Attention as a model states it: keys and values are repeated for the heads that share them."""
        row = self

        class Attention(torch.nn.Module):
            def forward(self, q, k, v):
                if row.kv != row.heads:
                    k, v = (tensor.repeat_interleave(row.heads // row.kv, 1) for tensor in (k, v))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=row.causal)

        return Attention()

    def peer(self, torch, backend):
        def call(q, k, v):
            with torch.nn.attention.sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=self.causal, enable_gqa=self.kv != self.heads)

        return call


def measured(o, torch, row, folder):
    """The times of a row by contender, and the largest error of ours, relative to the largest magnitude."""
    import numpy as np
    backends = torch.nn.attention.SDPBackend
    inputs = row.tensors(torch, "cuda")
    model = f"{folder}/{row.text}.onnx"
    on_host = tuple(tensor.cpu() for tensor in inputs)
    torch.onnx.export(row.attention(torch), on_host, model, input_names=["q", "k", "v"], output_names=["o"], dynamo=False)
    files = {name: f"{folder}/{name}.npy" for name in "qkv"}
    for path, tensor in zip(files.values(), on_host):
        np.save(path, tensor.numpy())
    plans = {"ours": (o.orchestrion, ())}
    if o.beside:
        plans["beside"] = (o.beside, ())
    if o.tune:
        plans["tuned"] = (o.orchestrion, ("--tune", "--budget", str(BUDGET_S)))
    reference = row.attention(torch)(*[tensor.float() for tensor in inputs]).cpu().numpy()
    found = {"row": row.text, "title": row.title(), "errors": {}, "compile_s": {}}
    runners = {}
    for name, (program, further) in plans.items():
        artifact = f"{folder}/{row.text}.{name}.orc"
        seconds = contest.compile_model(program, model, artifact, o.target, "f16", *further, *o.options.split())
        found["compile_s"][name] = round(seconds, 1)
        found["errors"][name] = contest.error_of(contest.result_of(program, artifact, files, folder), reference)
        runners[name] = contest.Served(program, artifact, files, "--device-only", "--cold")
    for name, backend in (("cudnn", backends.CUDNN_ATTENTION), ("flash", backends.FLASH_ATTENTION)):
        try:
            runners[name] = contest.Graph(torch, row.peer(torch, backend), inputs)
        except RuntimeError as error:
            found["errors"][name] = str(error).splitlines()[0][:80]
    found["us"] = contest.medians_us(runners)
    return found


def ratio(found, name="ours"):
    """The best peer's time over ours."""
    return min(found["us"][peer] for peer in ("cudnn", "flash") if peer in found["us"]) / found["us"][name]


def write_report(o, torch, rows):
    plans = [name for name in ("ours", "beside", "tuned") if any(name in row["us"] for row in rows)]
    peers = ["cudnn", "flash"]
    lines = [
        "# Attention on a GPU", "",
        "Written by `bench/gpu/attention.py`. Microseconds by the device's clock after the L2 cache was overwritten, medians of interleaved",
        "rounds. The ratio is that of the better peer's time to `ours`, which is not tuned.", "",
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {o.commit}, {time.strftime('%Y-%m-%d')}.", "",
        "| " + " | ".join(["batch, heads, head dimension, queries x keys", *plans, *peers, "ratio", "error"]) + " |",
        "|---" * (len(plans) + len(peers) + 3) + "|",
    ]
    for row in rows:
        times = [f"{row['us'][name]:.1f}" if name in row["us"] else "" for name in plans + peers]
        lines.append("| " + " | ".join([row["title"], *times, f"{ratio(row):.2f}", f"{row['errors']['ours']:.1e}"]) + " |")
    ratios = [ratio(row) for row in rows]
    lines += ["", f"Geometric mean of {len(rows)} rows {contest.geometric_mean(ratios):.2f}, least {min(ratios):.2f}."]
    both = [row for row in rows if "tuned" in row["us"]]
    if both:
        close = sum(row["us"]["ours"] <= 1.1 * row["us"]["tuned"] for row in both)
        lines.append(f"Of {len(both)} rows {close} take at most 10 % longer than tuned.")
    with open(f"{o.out}/attention.md", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(f"{o.out}/attention.json", "w") as file:
        json.dump(rows, file, indent=1)


def dry_run(o, torch, row, folder):
    """Compiles the model of a row, for a GPU that need not be here."""
    model, artifact = f"{folder}/{row.text}.onnx", f"{folder}/{row.text}.orc"
    torch.onnx.export(row.attention(torch), tuple(row.tensors(torch, "cpu")), model, dynamo=False)
    seconds = contest.compile_model(o.orchestrion, model, artifact, o.target, "f16", *o.options.split())
    steps = contest.steps_of(contest.manifest_of(o.orchestrion, artifact))
    print(f"{row.text}: {seconds:.1f} s, modelled {sum(step['modelled_us'] for step in steps):.1f} us", flush=True)
    for step in steps:
        print(f"    {step['modelled_us']:9.2f} us  {step['blocks']} blocks  {step['schedule']}", flush=True)


def main():
    import torch
    o, started, rows = options(), time.time(), []
    if o.out:
        os.makedirs(o.out, exist_ok=True)
    for text in o.rows or ROWS:
        if time.time() - started > o.limit_s:
            print(f"not started: {text}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            if o.dry_run:
                dry_run(o, torch, Row(text), folder)
                continue
            rows.append(measured(o, torch, Row(text), folder))
        print(json.dumps(rows[-1]), flush=True)
        if o.out:
            write_report(o, torch, rows)


if __name__ == "__main__":
    main()
