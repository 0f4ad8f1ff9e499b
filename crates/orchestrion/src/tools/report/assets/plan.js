// The data of the page, and what follows from it: which step feeds which, and blocks of steps.
"use strict";
(() => {
  /** Steps of a block, at most, and of a block without a name of its own. */
  const MOST_STEPS = 40;
  const CHUNK = 24;
  /** Steps of a block on average, at least. */
  const LEAST_MEAN = 6;

  /** The steps of a report, with what the page shows of each. */
  function planOf(report) {
    const manifest = report.manifest;
    const steps = manifest.steps.map((step, number) => {
      const measured = report.measured_us[number] ?? null;
      const kernel = typeof step.action === "object" && "kernel" in step.action ? manifest.kernels[step.action.kernel] ?? null : null;
      const isHost = typeof step.action === "object" && "host" in step.action;
      return {
        ...step, number, kernel, isHost, measured,
        kind: isHost ? "host" : kernel ? "kernel" : "copy",
        us: measured ?? step.cost_us,
        roofline: step.roofline_us > 0 ? step.roofline_us : null,
        span: report.timeline.spans[number],
        waits: report.timeline.waits[number],
        reads: [], feeds: [],
      };
    });
    for (const life of report.lives) {
      for (const reader of life.readers) {
        if (reader === life.writer) continue;
        if (!steps[life.writer].feeds.includes(reader)) steps[life.writer].feeds.push(reader);
        if (!steps[reader].reads.includes(life.writer)) steps[reader].reads.push(life.writer);
      }
    }
    const total = steps.reduce((sum, step) => sum + step.us, 0);
    const isMeasured = steps.length > 0 && steps.every((step) => step.measured !== null);
    return { report, manifest, steps, total, isMeasured, blocks: blocksOf(steps) };
  }

  /** The scope of a step: the first `depth` parts of the path of its first operator. */
  function scope(step, depth) {
    const parts = (step.origins[0] ?? "").split(/[/.]/).filter((part) => part !== "");
    return parts.slice(0, -1).slice(0, depth).join("/");
  }

  /** Runs of consecutive steps of one scope; such blocks never wait for each other in a circle. */
  function runs(steps, depth) {
    const found = [];
    for (const step of steps) {
      const name = scope(step, depth);
      const last = found[found.length - 1];
      if (last && last.name === name) last.steps.push(step.number);
      else found.push({ name, steps: [step.number] });
    }
    return found;
  }

  function blocksOf(steps) {
    let blocks = runs(steps, 0);
    for (let depth = 1; depth <= 8; depth++) {
      const deeper = runs(steps, depth);
      if (deeper.length * LEAST_MEAN > Math.max(steps.length, 2 * LEAST_MEAN)) break;
      blocks = deeper;
    }
    const parts = [];
    for (const { name, steps: all } of blocks) {
      const size = all.length <= MOST_STEPS ? MOST_STEPS : CHUNK;
      for (let at = 0; at < all.length; at += size) {
        const part = all.slice(at, at + size);
        const range = part.length === 1 ? `step ${part[0]}` : `steps ${part[0]} to ${part[part.length - 1]}`;
        parts.push({ name: name === "" ? range : name, range, steps: part });
      }
    }
    return parts;
  }

  /** A primitive from its line: `t7: f32[1, 64] = add t5, t6`; the tensors that are not found stay unconnected. */
  function primitiveOf(line) {
    const at = line.indexOf(" = ");
    if (at < 0) return { text: line, word: line, outputs: [], inputs: [] };
    const right = line.slice(at + 3);
    const outputs = (line.slice(0, at).match(/t\d+(?=:)/g) ?? []);
    const inputs = right.match(/\bt\d+\b/g) ?? [];
    return { text: line, word: right.replace(/(\s|,)*\bt\d+\b/g, "").trim() || right, outputs, inputs };
  }

  Object.assign(orchestrion, { planOf, primitiveOf });
})();
