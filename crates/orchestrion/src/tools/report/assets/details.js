// What is known of a step: operators, primitives, times, launch, proof, alternatives, source.
"use strict";
(() => {
  const { el, short, time, bytes, percent, isKnown, table } = orchestrion;
  const WAYS = { other_kernel: "another kernel", fused: "one kernel for all of", split: "several kernels" };

  const section = (title, ...content) => el("section", {}, el("h3", { text: title }), content);
  const facts = (pairs) => el("dl", {}, pairs.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", {}, value)]));
  const list = (lines) => el("ul", { class: "lines" }, lines.map((line) => el("li", { text: line })));

  /** A button that selects a step. */
  function link(plan, number, onSelect) {
    const step = plan.steps[number];
    return el("button", { type: "button", class: "link", text: step ? `${number}: ${short(step.name, 40)}` : `${number}`, onclick: () => onSelect(number) });
  }

  const links = (plan, numbers, onSelect) =>
    numbers.length === 0 ? "none" : numbers.slice(0, 20).flatMap((number) => [link(plan, number, onSelect), " "]).concat(numbers.length > 20 ? [`and ${numbers.length - 20} more`] : []);

  /** Steps that run at the same time. */
  function overlapping(plan, step) {
    const [start, end] = [step.span.start_us, step.span.start_us + step.span.duration_us];
    const overlaps = (other) => other.number !== step.number && other.span.start_us < end && start < other.span.start_us + other.span.duration_us;
    return plan.steps.filter(overlaps).map((other) => other.number);
  }

  function details(plan, number, onSelect) {
    const step = plan.steps[number];
    if (!step) return el("p", { class: "hint", text: "Select a kernel in any view to see what it computes, how, and what was considered instead." });
    const rate = step.flops > 0 && step.us > 0 ? `${(step.flops / step.us / 1e3).toFixed(1)} GFLOP/s` : "unknown";
    const bandwidth = step.us > 0 ? `${(step.traffic_bytes / step.us / 1e3).toFixed(1)} GB/s` : "unknown";
    return el("div", {},
      el("h2", { text: `${number}: ${short(step.name, 120)}` }),
      facts([
        ["runs", step.isHost ? "on the host, through the interpreter" : step.kind === "copy" ? "as a copy" : "as a kernel"],
        ["modelled", `${time(step.cost_us)}`],
        ["tuned, alone", time(step.tuned_us)],
        ["measured here", time(step.measured)],
        ["least time (roofline)", step.roofline === null ? "unknown" : `${time(step.roofline)}, ${percent(step.roofline, step.us)} of the ${step.measured === null ? "modelled" : "measured"} time`],
        ["share of the run", percent(step.us, plan.total)],
        ["arithmetic", step.flops > 0 ? `${(step.flops / 1e6).toFixed(2)} MFLOP, ${rate}` : "unknown"],
        ["traffic", `${bytes(step.traffic_bytes)}, ${bandwidth}`],
        ["reads results of", links(plan, step.reads, onSelect)],
        ["is read by", links(plan, step.feeds, onSelect)],
        ["may overlap", links(plan, overlapping(plan, step), onSelect)],
      ]),
      section(`Operators of the model (${step.origins.length})`, step.origins.length ? list(step.origins) : "none"),
      section(`Primitives (${step.computes.length})`, step.computes.length ? list(step.computes) : "none"),
      step.kernel ? launch(step, plan.report.calls[number]) : null,
      proof(plan, step),
      considered(plan, step, onSelect),
      step.kernel ? source(step.kernel) : null,
      step.isHost ? section("Graph that is interpreted", code(step.action.host.graph)) : null);
  }

  const code = (text) => el("pre", { tabindex: 0, role: "region", "aria-label": "source text", text });

  function launch({ kernel }, here) {
    const pairs = [["schedule", kernel.schedule || "unknown"], ["work items", `${kernel.tasks}`]];
    const cta = kernel.team;
    if (cta) {
      pairs.push(["CTA", `${cta.threads} threads, clusters of ${cta.cluster}, ${bytes(cta.shared_bytes)} shared memory`]);
      pairs.push(["registers", cta.resources ? `${cta.resources.registers}, ${bytes(cta.resources.spill_bytes)} spilled, ${bytes(cta.resources.stack_bytes)} stack` : "unknown"]);
    } else {
      pairs.push(["scratch of a thread", bytes(kernel.scratch_bytes)]);
    }
    if (kernel.call) {
      pairs.push(["library call", `${kernel.call.release} instead of the kernel, which took ${time(kernel.call.own_us)}`]);
      pairs.push(["here", !here ? "unknown" : here.called ? `${here.called} is called` : `the kernel runs: ${here.not_called}`]);
    }
    return section("Launch and schedule", facts(pairs));
  }

  /** The three links between the model and a found kernel: extracted, proved, tested. */
  function proof(plan, step) {
    if (step.proof === null || step.proof === undefined) {
      return section("Proof", "None: the kernel is of a template. `orchestrion verify` compares outputs with the interpreter.");
    }
    const certificate = plan.manifest.proofs[step.proof];
    const part = (plan.manifest.parts ?? []).find((part) => part.kernels.some((kernel) => kernel.step === step.number));
    const bound = certificate && isKnown(certificate.log2_bound) ? `but for a chance of 2^${certificate.log2_bound.toFixed(0)}` : "with an unknown bound";
    return section(`Proof ${step.proof}`,
      el("ol", { class: "chain" },
        el("li", {}, el("strong", { text: "extracted: " }), part ? `the model's part is the program${part.premises.length ? ", if " + part.premises.join("; ") : ""}` : "unknown: the file does not say which part of the model it is"),
        el("li", {}, el("strong", { text: "proved: " }), certificate ? `the \u00b5Graph computes the program, ${bound}` : "unknown"),
        el("li", {}, el("strong", { text: "tested: " }), "the kernel computes the \u00b5Graph: on random inputs, by `orchestrion verify`; the file does not say whether that was run")),
      part?.unstable ? el("p", { text: `unstable: ${part.unstable}` }) : null,
      certificate ? [el("details", {}, el("summary", { text: "Program" }), code(certificate.program)), el("details", {}, el("summary", { text: "\u00b5Graph" }), code(certificate.candidate))] : null);
  }

  function considered(plan, step, onSelect) {
    const title = "Considered instead";
    if (!step.considered) return section(title, "Unknown: the file does not say.");
    if (step.considered.length === 0) return section(title, "Nothing else computes the same with kernels that could be chosen.");
    return section(title, table("Closest alternatives, and by how much they lost", [
      { title: "what", cell: (row) => row.way === "split" ? `${row.kernels} kernels` : WAYS[row.way] ?? row.way },
      { title: "for steps", cell: (row) => el("span", {}, links(plan, row.steps, onSelect)) },
      { title: "takes", isNumber: true, cell: (row) => time(row.cost_us) },
      { title: "chosen", isNumber: true, cell: (row) => time(row.instead_us) },
      { title: "loses", isNumber: true, cell: (row) => time(row.cost_us - row.instead_us) },
      { title: "by", cell: (row) => row.is_measured ? "measured" : "modelled" },
    ], step.considered));
  }

  function source(kernel) {
    return section("Source", el("details", {}, el("summary", { text: `${short(kernel.symbol || kernel.name, 80)} (${bytes(kernel.source.length)})` }), code(kernel.source)));
  }

  /** What the superoptimizer searched, and its bounds. */
  function searches(plan) {
    const all = plan.manifest.report.searches;
    if (!all) return el("p", { text: "Unknown: the file does not say what was searched." });
    if (all.length === 0) return el("p", { text: "Nothing was searched: no part of the model might have gained enough, or the superoptimizer was off." });
    const used = new Set(plan.steps.map((step) => step.proof).filter((proof) => proof !== null && proof !== undefined).map((proof) => plan.manifest.proofs[proof]?.program));
    return el("div", {}, table("Programs that were searched for \u00b5Graphs", [
      { title: "program", isNumber: true, cell: (row) => `${all.indexOf(row)}` },
      { title: "uses", isNumber: true, cell: (row) => `${row.uses}` },
      { title: "templates take", isNumber: true, cell: (row) => time(row.spent_us) },
      { title: "might gain at most", isNumber: true, cell: (row) => time(row.gain_us) },
      { title: "searched below", isNumber: true, cell: (row) => time(row.below_us) },
      { title: "states", isNumber: true, cell: (row) => `${row.states} of ${row.state_limit}` },
      { title: "screened, failed", isNumber: true, cell: (row) => `${row.screened[0]}, ${row.screened[1]}` },
      { title: "proved", isNumber: true, cell: (row) => row.proved_us.length ? row.proved_us.map(time).join(", ") : "none" },
      { title: "used", cell: (row) => used.has(row.program) ? "yes" : "no" },
    ], all), all.map((row, number) => el("details", {}, el("summary", { text: `Program ${number}: ${row.stopped || "unknown why the search ended"}` }), code(row.program),
      row.refused.length ? list(row.refused.map((reason) => `refused: ${reason}`)) : null,
      row.pruned.length ? list(row.pruned.map(([rule, count]) => `left aside by ${rule}: ${count}`)) : null)));
  }

  Object.assign(orchestrion, { details, searches, facts, section });
})();
