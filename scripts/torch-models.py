#!/usr/bin/env python3
"""Models of torchvision, timm and transformers through `torch.compile(backend="orchestrion")`, beside eager.

    torch-models.py [--models NAME ...] [--drawn N --seed S] [--force-eager P]
    torch-models.py --coverage ..       traces and partitions, without compiling
    torch-models.py --train STEPS [--optimizer sgd|adamw] [--dropout]

A fixed list of models and N more that a seed draws from the lists of the three libraries, with random weights. Models that cannot
be built without downloads, are large, or are slow in eager are skipped, with the reason. `--force-eager` takes each target for
unsupported with probability P. `scripts/torch_models/compare.py` states what passes; the exit code is 1 if something does not.
"""

import argparse
import contextlib
import gc
import itertools
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from torch_models import catalog, compare  # noqa: E402


def run(names, count, check):
    """Rows of the first `count` models that are not skipped."""
    rows, names = [], iter(names)
    while len(rows) < count and (name := next(names, None)):
        try:
            row = check(name)
        except Exception as error:  # noqa: BLE001 - reported as a failure, or why a model is not built
            message = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
            if isinstance(error, catalog.Skipped) or not builds(name):
                print(f"skipped {name}: {message}", flush=True)
                continue
            row = compare.Row(name, wrong=message)
        rows.append(row)
        show(row)
        gc.collect()
    return rows


def builds(name):
    """True if eager builds and runs a model."""
    try:
        built = catalog.build(name)
        built.call(built.model.eval())
    except Exception:  # noqa: BLE001
        return False
    return True


def show(row):
    eager = ", ".join(f"{count} x {target}" for target, count in sorted(row.eager.items()))
    print(f"{'FAIL' if row.wrong else 'ok':4} {row.name:44} {row.error:8.1e} {row.eager_error:8.1e} {row.graphs:3} {row.partitions:3} "
          f"{row.compiled:5}/{row.calls:<5} {row.seconds:6.1f} s  {row.wrong or ''}  {eager}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="instead of the fixed list")
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="models drawn besides")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5.0, help="models that eager takes longer for are skipped")
    parser.add_argument("--coverage", action="store_true", help="does not compile")
    parser.add_argument("--force-eager", type=float, metavar="P")
    parser.add_argument("--train", type=int, metavar="STEPS")
    parser.add_argument("--optimizer", choices=compare.OPTIMIZERS, default="sgd")
    parser.add_argument("--dropout", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with contextlib.ExitStack() as stack:
        if args.coverage:
            stack.enter_context(compare.without_compiling())
        if args.force_eager is not None:
            stack.enter_context(compare.forced_to_eager(args.force_eager, args.seed))
        print("     model                                       error    eager's graphs, partitions, calls compiled, time", flush=True)
        if args.train:
            check = compare.dropout_training if args.dropout else compare.training
            names = catalog.TRAINED if args.models is None else args.models
            rows = run(names, len(names), lambda name: check(name, args.train, args.optimizer))
        else:
            names = catalog.FIXED if args.models is None else args.models
            rows = run(names, len(names), lambda name: compare.inference(name, args.seconds))
            rows += run(itertools.islice(catalog.drawn(args.seed), 20 * args.drawn), args.drawn,
                        lambda name: compare.inference(name, args.seconds))
    failed = [row.name for row in rows if row.wrong]
    print(f"{len(rows)} models, {len(failed)} failed, {sum(row.whole for row in rows)} in one partition with at least 95 % of the calls")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
