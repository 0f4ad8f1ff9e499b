"""Every schedule of one convolution, timed on a GPU: the case of Fig. 18 of the Hidet paper.

usage: python3 bench/gpu/schedules.py [--schedules N] [--orchestrion FILE] [--options WORDS] [--out FOLDER]

The case is the block of ResNet-50 that halves 28 x 28 pixels of 256 channels by a window of 3 x 3, with bias and ReLU,
channels last, in f16 and f32. `orchestrion compile --tune --tune-schedules N` times it with an empty cache of its own, and the
exported records say how long each schedule took, by the device's clock and with the L2 cache overwritten. Those of
the template whose schedule the model ranks first count. N has to leave room for some of other templates, which are timed last:
that shows that none is missing. `compile s` is the wall time of the whole command, which builds and times all of them.

With --out, rows are added to FOLDER/schedules-gpu.json, with every schedule and its time, and FOLDER/schedules-gpu.md is written
from it; --report does only the latter. torch is not needed. --dry-run needs no GPU: it compiles for cuda:sm_90 and prints plans.
"""
import json, statistics, subprocess, sys, tempfile, time

import contest, kernels

CASE = (256, 28, 256, 3, 2)
PRECISIONS = ["f32", "f16"]
# Of the best time.
FACTORS = [1.1, 1.5, 2.0]
# What the text of the Hidet paper says of its own schedules, on an RTX 3090 in f32.
PAPER_SCHEDULES, PAPER_MOST_US = 180, 73


def options():
    parser = contest.arguments(__doc__)
    parser.add_argument("--schedules", type=int, default=256, help="more than the template has (default: 256)")
    return contest.parsed(parser)


def compiled(o, folder, precision, *further):
    """The seconds that compiling took, and the step of the plan that is the convolution."""
    case = kernels.conv(*CASE)
    case.precision = precision
    case.write(precision, f"{folder}/case.onnx")
    words = [*o.options.split(), "--cache-dir", f"{folder}/{precision}", *further]
    seconds = contest.compile_model(o.orchestrion, f"{folder}/case.onnx", f"{folder}/case.orc", o.target, precision, *words)
    steps = contest.steps_of(contest.manifest_of(o.orchestrion, f"{folder}/case.orc"))
    return seconds, max(steps, key=lambda step: step["modelled_us"])


def exported(o, folder, precision):
    """The records of the cache in which this precision was compiled."""
    command = [o.orchestrion, "cache", "--cache-dir", f"{folder}/{precision}", "export", f"{folder}/records"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(f"{folder}/records") as file:
        return [json.loads(line) for line in file]


def times_of(records, precision, schedule):
    """Microseconds by schedule of the kernel that has this schedule among others."""
    start = f"time of a kernel, {precision}, "
    found = {}
    for record in records:
        key = record["key"]
        if key["flags"].startswith(start):
            found.setdefault(key["program_blake3"], {})[key["flags"].removeprefix(start)] = round(record["value"], 3)
    return next((times for times in found.values() if schedule in times), {})


def measure(o, folder, precision):
    """Which machine and compiler it was, and the row of a precision."""
    seconds, _ = compiled(o, folder, precision, "--tune", "--tune-schedules", str(o.schedules))
    _, preferred = compiled(o, folder, precision)
    records = exported(o, folder, precision)
    every = times_of(records, precision, preferred["schedule"])
    template = preferred["schedule"].split()[0]
    times = {schedule: time for schedule, time in every.items() if schedule.split()[0] == template}
    if not times:
        raise RuntimeError(f"{precision}: no time of the schedule that the model ranks first: {preferred['schedule']}")
    if len(times) == len(every):
        raise RuntimeError(f"{precision}: {len(times)} schedules and none of another template: there may be more; give a larger --schedules")
    key = records[0]["key"]
    of_others = {"others": len(every) - len(times), "compile_s": round(seconds, 1)}
    return {"device": key["machine"], "compiler": key["compiler"]}, distribution(precision, times, preferred["schedule"]) | of_others


def distribution(precision, times, preferred):
    """The row of a precision: `times` by schedule, of which the model ranks `preferred` first."""
    ordered = sorted(times.items(), key=lambda item: item[1])
    sorted_us = [time for _, time in ordered]
    best, share = sorted_us[0], lambda limit: round(sum(time <= limit for time in sorted_us) / len(sorted_us), 3)
    row = {"precision": precision, "schedules": len(ordered), "best": best, "median": statistics.median(sorted_us), "worst": sorted_us[-1]}
    row |= {"within": [share(factor * best) for factor in FACTORS], "below_paper": share(PAPER_MOST_US)}
    row |= {"preferred": times[preferred], "preferred_schedule": preferred, "best_schedule": ordered[0][0]}
    return row | {"times": dict(ordered)}


def summary(row):
    within = ", ".join(f"{100 * share:.0f} % within {factor} times" for factor, share in zip(FACTORS, row["within"]))
    return (
        f"{row['precision']}: {row['schedules']} schedules, best {row['best']:.2f} us, median {row['median']:.2f} ({row['median'] / row['best']:.2f} times the best), worst {row['worst']:.2f}; "
        f"{within} the best; the model's first takes {row['preferred']:.2f}; {row['others']} of other templates; {row['compile_s']} s"
    )


def table_lines(rows):
    head = ["precision", "schedules", "best us", "median", "worst", *(f"within {factor} x" for factor in FACTORS)]
    head += [f"below {PAPER_MOST_US} us", "model's first us", "of other templates", "compile s"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        median = f"{row['median']:.2f} ({row['median'] / row['best']:.2f} x)"
        cells = [row["precision"], str(row["schedules"]), f"**{row['best']:.2f}**", median, f"{row['worst']:.2f}"]
        cells += [f"{100 * share:.0f} %" for share in [*row["within"], row["below_paper"]]]
        lines.append("| " + " | ".join([*cells, f"{row['preferred']:.2f}", str(row["others"]), f"{row['compile_s']:.1f}"]) + " |")
    return lines


def write_report(folder):
    """schedules-gpu.md from schedules-gpu.json."""
    lines = [
        "# Every schedule of a convolution on a GPU", "",
        "Written by `bench/gpu/schedules.py`: the convolution of Fig. 18 of the Hidet paper (28 x 28 pixels, 256 channels to 256,",
        "window 3 x 3, stride 2, batch 1), with bias and ReLU, channels last. Microseconds by the device's clock, with the L2",
        "cache overwritten before each run; each schedule alone. `within 1.1 x`: the share of schedules that take at most 1.1 times as",
        "long as the best. `model's first`: the time of the schedule that is taken without `--tune`. `of other templates`: schedules that",
        "were timed besides and do not count. `compile s`: wall time of `compile --tune`, from an empty cache.", "",
        f"The paper has {PAPER_SCHEDULES} schedules, most of which take less than {PAPER_MOST_US} us on an RTX 3090 in f32; its text gives no other figures.",
    ]
    for table in json.load(open(f"{folder}/schedules-gpu.json")):
        lines += ["", f"## {table['device']}", ""]
        lines += [f"{table['compiler']}; Orchestrion {table['commit']}; {table['date']}.", "", *table_lines(table["rows"]), ""]
        lines += [f"Best in {row['precision']}: `{row['best_schedule']}`.\n" for row in table["rows"]]
    with open(f"{folder}/schedules-gpu.md", "w") as file:
        file.write("\n".join(lines).rstrip() + "\n")


def main():
    o = options()
    if o.report:
        return write_report(o.out or "bench/results")
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            if time.time() - start > o.limit_s:
                sys.exit(f"no time left for {precision}")
            if o.dry_run:
                seconds, step = compiled(o, folder, precision)
                print(f"{precision}: {seconds:.1f} s, {step['modelled_us']:.2f} us  {step['schedule']}", flush=True)
                continue
            machine, row = measure(o, folder, precision)
            print(summary(row), flush=True)
            if o.out:
                facts = {"compiler": machine["compiler"], "commit": o.commit, "date": time.strftime("%Y-%m-%d")}
                contest.put_table(f"{o.out}/schedules-gpu.json", {"device": machine["device"]}, facts, "precision", row, PRECISIONS)
                write_report(o.out)


if __name__ == "__main__":
    main()
