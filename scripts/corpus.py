#!/usr/bin/env python3
"""Which generated kernels a change of the code changes: hashes of the C and CUDA C++ of many models on many targets.

    corpus.py hash OUT.tsv [--orchestrion FILE] [--models DIR] [--only WORD ...]
                            [--targets WORD ...] [--keep DIR]
    corpus.py compare OLD.tsv NEW.tsv

`hash` plans every model below DIR (made by scripts/zoo.sh; default target/zoo) and every program of bench/gpu/programs.py
for every row of CONFIGURATIONS, writes the source of each kernel (`orchestrion compile --emit-source`), and puts one line per
kernel into OUT.tsv: model, target, precision, number, name, hash. Nothing is compiled, and no GPU is needed. --only takes
the models whose names contain one of the words, --targets the configurations, as in cuda:sm_90/f16; --keep keeps the sources.

A hash is of the source without comments and white space, with each identifier that the source itself may choose replaced by the
number of its first appearance, in the file or in its function: what is renamed hashes alike. Keywords, types, intrinsics and assembly count as they are.

`compare` lists the kernels that differ, are gone or are new; the exit code is 1 if there are any.
scripts/corpus.sh does all of it for two commits.
"""
import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGURATIONS = [
    ("cuda:sm_90", "f16"), ("cuda:sm_90", "f32"), ("cuda:sm_90", "bf16"), ("cuda:sm_90", "tf32"),
    ("cuda:sm_80", "f16"), ("cuda:sm_80", "f32"),
    ("x86-64-v3", "f32"), ("x86-64-v4", "f32"), ("x86-64-v4-bf16", "bf16"), ("x86-64-amx", "bf16"),
]
# What a source does not choose: it keeps its spelling.
FIXED = re.compile(
    r"_mm|__|v[a-z0-9]*q?_[a-z0-9_]+$|(u?int|float)\d*(x\d+)?_t$|(c?uint|int|float|double|half|short|char|long)\d*$"
    r"|(f16|bf16|f32|f64|[iu](8|16|32|64))$|(blockIdx|threadIdx|x|y|z|asm|volatile|memory)$"
    r"|(if|else|for|while|do|return|const|static|inline|struct|union|typedef|unsigned|signed|void|bool|extern|restrict"
    r"|sizeof|switch|case|break|continue|default|goto|template|typename|include|define|ifdef|ifndef|endif|pragma|undef)$"
    r"|(expf?|logf?|sqrtf?|rsqrtf?|fmaf?|fmaxf?|fminf?|fabsf?|powf?|tanhf?|erff?|floorf?|ceilf?|rintf?|roundf?|truncf?"
    r"|sinf?|cosf?|memcpy|memset)$"
)
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|[ \t]+|\\\n|(?P<line>\n)|(?P<string>"(?:\\.|[^"\\])*")|(?P<word>[A-Za-z_]\w*)|(?P<other>\d[\w.]*|.)', re.S
)


def top_level_items(text):
    """Lists of tokens, one of each function, declaration and preprocessor line; a token is its kind and text."""
    item, depth = [], 0
    for token in TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "line" and item and item[0] == ("other", "#"):
            yield item
            item = []
        if kind in (None, "line"):
            continue
        item.append((kind, token[0]))
        is_line = item[0] == ("other", "#")
        depth += {"{": 1, "}": -1}.get(token[0], 0) if kind == "other" and not is_line else 0
        if not is_line and depth == 0 and kind == "other" and token[0] in ";}":
            yield item
            item = []
    yield item


def named_outside(item):
    """The names that an item gives or uses outside of its parameters and body: of functions, types, macros."""
    depth, before = 0, None
    for kind, text in item:
        if kind == "other":
            depth += {"{": 1, "(": 1, "<": 1, "}": -1, ")": -1, ">": -1}.get(text, 0)
        elif kind == "word" and depth <= 0 and not FIXED.match(text):
            yield text
        before = text
        if item[0] == ("other", "#") and before == "(":
            return


def normalised(text):
    """The source with what may be renamed numbered, without comments: names of the file over the file, others in their item."""
    items = list(top_level_items(text))
    outside = {}
    for item in items:
        for name in named_outside(item):
            outside.setdefault(name, len(outside))
    out = []
    for item in items:
        inside = {}
        for kind, text in item:
            if kind != "word" or FIXED.match(text):
                out.append(text)
            elif text in outside:
                out.append(f"@{outside[text]}")
            else:
                out.append(f"#{inside.setdefault(text, len(inside))}")
    return " ".join(out)


def write_programs(folder):
    """The programs of bench/gpu/programs.py as models whose tensors are all inputs: a file of each."""
    sys.path.insert(0, str(ROOT / "bench/gpu"))
    import contest
    import programs
    for name, program in programs.programs(1).items():
        path = folder / name / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        contest.write_model(name, "f32", *program, str(path))


def kernels(orchestrion, model, target, precision, folder):
    """Names and sources of a plan's kernels, in order; the reason where there is no plan."""
    with tempfile.TemporaryDirectory() as cache:
        command = [orchestrion, "compile", model, "--target", target, "--precision", precision, "--quiet",
                   "--emit-source", folder, "--cache-dir", cache]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        return None, result.stderr.strip().splitlines()[-1:]
    def number(path):
        return int(re.match(r"k(\d+)", path.name)[1])
    return [(path.stem, path.read_text()) for path in sorted(folder.iterdir(), key=number)], None


def wanted(text, words):
    return not words or any(word in text for word in words)


def hash_all(o):
    models = {path.parent.name: path for path in sorted(pathlib.Path(o.models).glob("*/model.onnx"))}
    work = pathlib.Path(o.keep or tempfile.mkdtemp())
    write_programs(work / "programs")
    models |= {f"program_{path.parent.name}": path for path in sorted((work / "programs").glob("*/model.onnx"))}
    count = 0
    with open(o.out, "w") as out:
        for target, precision in CONFIGURATIONS:
            for name, model in models.items():
                row = f"{name}\t{target}\t{precision}"
                if not wanted(name, o.only) or not wanted(f"{target}/{precision}", o.targets):
                    continue
                folder = work / row.replace("\t", "_").replace(":", "_")
                found, problem = kernels(o.orchestrion, model, target, precision, folder)
                if found is None:
                    out.write(f"{row}\t-\t-\t{problem}\n")
                for at, (kernel, text) in enumerate(found or []):
                    digest = hashlib.sha256(normalised(text).encode()).hexdigest()[:16]
                    out.write(f"{row}\t{at}\t{kernel}\t{digest}\n")
                    count += 1
                if not o.keep:
                    shutil.rmtree(folder, ignore_errors=True)
                out.flush()
    print(f"{count} kernels in {o.out}")
    return 0


def compare(o):
    def rows(path):
        lines = (line.rstrip("\n").split("\t") for line in open(path))
        return {tuple(line[:4]): tuple(line[4:]) for line in lines}
    old, new = rows(o.old), rows(o.new)
    changed = [key for key in old if key in new and old[key][1] != new[key][1]]
    gone, added = [key for key in old if key not in new], [key for key in new if key not in old]
    for word, keys, table in (("changed", changed, new), ("gone", gone, old), ("new", added, new)):
        for key in keys:
            print(f"{word}\t" + "\t".join(key) + f"\t{table[key][0]}")
    print(f"{len(old)} kernels before, {len(new)} now: {len(changed)} changed, {len(gone)} gone, {len(added)} new")
    return 1 if changed or gone or added else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("hash")
    verb.add_argument("out")
    verb.add_argument("--orchestrion", default=str(ROOT / "target/release/orchestrion"))
    verb.add_argument("--models", default=str(ROOT / "target/zoo"))
    verb.add_argument("--only", nargs="*", default=[])
    verb.add_argument("--targets", nargs="*", default=[])
    verb.add_argument("--keep")
    verb.set_defaults(run=hash_all)
    verb = verbs.add_parser("compare")
    verb.add_argument("old")
    verb.add_argument("new")
    verb.set_defaults(run=compare)
    o = parser.parse_args()
    return o.run(o)


if __name__ == "__main__":
    sys.exit(main())
