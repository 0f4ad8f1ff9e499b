// Timeline, roofline and memory, by uPlot: axes, zoom (drag; double click resets) and cursor are its own.
"use strict";
(() => {
  const { el, short, time, bytes, color, table, isKnown } = orchestrion;

  const axis = (label, format, size) => ({
    label, stroke: color("text"), grid: { stroke: color("frame"), width: 0.5 }, ticks: { stroke: color("frame"), width: 1 }, font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif", size, values: format ? (_, all) => all.map((value) => (value === null ? "" : format(value))) : undefined,
  });

  /** A chart in an element that makes it anew when its width or the theme changes. `options(width)` and `data` are uPlot's. */
  class Chart {
    constructor(label, options, data, pick) {
      this.options = options;
      this.data = data;
      this.pick = pick;
      this.host = el("div", { class: "chart" });
      this.readout = el("p", { class: "status", role: "status" });
      const button = (text, action) => el("button", { type: "button", text, onclick: action, "aria-label": `${text}: ${label}` });
      this.element = el("figure", {}, el("figcaption", { text: label }),
        el("div", { class: "bar" }, button("Zoom in", () => this.zoom(0.5)), button("Zoom out", () => this.zoom(2)),
          button("Earlier", () => this.shift(-0.25)), button("Later", () => this.shift(0.25)), button("All", () => this.reset())),
        this.host, this.readout);
      new ResizeObserver(() => this.make()).observe(this.host);
    }

    make(isForced) {
      const width = this.host.clientWidth;
      if (width === 0 || (!isForced && width === this.width)) return;
      this.width = width;
      this.plot?.destroy();
      const options = this.options(width);
      options.hooks = { ...options.hooks, setCursor: [(plot) => this.hover(plot)] };
      options.legend = { show: false, ...options.legend };
      this.plot = new uPlot(options, this.data, this.host);
      this.plot.over.addEventListener("click", () => { const found = this.under(); if (found) this.pick(found.step); });
      this.range = [this.plot.scales.x.min, this.plot.scales.x.max];
    }

    under() {
      const { left, top } = this.plot.cursor;
      return left >= 0 && top >= 0 ? this.at(this.plot, left, top) : null;
    }

    hover(plot) {
      const { left, top } = plot.cursor;
      const found = left >= 0 && top >= 0 ? this.at(plot, left, top) : null;
      this.readout.textContent = found ? found.text : "";
    }

    reset() { if (this.plot) this.plot.setScale("x", { min: this.data[0][0], max: this.data[0][this.data[0].length - 1] }); }
    zoom(factor) {
      if (!this.plot) return;
      const { min, max } = this.plot.scales.x;
      const half = ((max - min) * factor) / 2;
      this.plot.setScale("x", { min: (min + max) / 2 - half, max: (min + max) / 2 + half });
    }
    shift(part) {
      if (!this.plot) return;
      const { min, max } = this.plot.scales.x;
      const by = part * (max - min);
      this.plot.setScale("x", { min: min + by, max: max + by });
    }
  }

  /** Rectangles as uPlot draws them: `boxes` have `x`, `x2`, `y`, `y2`, `fill`, `label`, `text` and `step`. */
  function boxes(label, all, { width: end, height, pick, x, y, tall }) {
    const draw = (plot) => {
      const pen = plot.ctx;
      const ratio = window.devicePixelRatio || 1;
      pen.save();
      pen.beginPath();
      pen.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
      pen.clip();
      pen.font = `${11 * ratio}px system-ui, sans-serif`;
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      const { min, max } = plot.scales.x;
      for (const box of all) {
        if (box.x > max || box.x2 < min) continue;
        const [left, right] = [plot.valToPos(box.x, "x", true), plot.valToPos(box.x2, "x", true)];
        const [top, bottom] = [plot.valToPos(box.y2, "y", true), plot.valToPos(box.y, "y", true)];
        const width = Math.max(right - left, ratio);
        pen.fillStyle = box.fill();
        pen.fillRect(left, top, width, bottom - top);
        if (width > 3 * ratio) {
          pen.strokeStyle = color("panel");
          pen.strokeRect(left, top, width, bottom - top);
        }
        if (width > 40 * ratio && bottom - top > 12 * ratio) {
          pen.fillStyle = color("text");
          pen.fillText(short(box.label, Math.floor(width / (6.5 * ratio))), left + 4 * ratio, (top + bottom) / 2 + 4 * ratio);
        }
      }
      pen.restore();
    };
    const options = (width) => ({
      width, height: tall, cursor: { y: false, points: { show: false } },
      scales: { x: { time: false }, y: { range: [0, Math.max(height, 1e-9)] } },
      axes: [axis(x.label, x.format, 34), axis(y.label, y.format, y.size)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [draw] },
    });
    const chart = new Chart(label, options, [[0, Math.max(end, 1e-9)], [0, height]], pick);
    chart.at = (plot, left, top) => {
      const [at, level] = [plot.posToVal(left, "x"), plot.posToVal(top, "y")];
      const slack = plot.posToVal(left + 2, "x") - at;
      return all.find((box) => at >= box.x - slack && at <= box.x2 + slack && level >= box.y && level <= box.y2) ?? null;
    };
    return chart;
  }

  const tint = (step) => (step.isHost ? color("host") : step.measured === null ? color("modelled") : color("measured"));

  function timeline(plan, pick) {
    const { timeline, run_us: run } = plan.report;
    const lanes = plan.steps.reduce((most, step) => Math.max(most, step.span.lane + 1), 1);
    const all = plan.steps.map((step) => ({
      x: step.span.start_us, x2: step.span.start_us + step.span.duration_us, y: lanes - step.span.lane - 0.95, y2: lanes - step.span.lane - 0.05,
      fill: () => tint(step), label: step.name, step: step.number,
      text: `${step.number}: ${short(step.name, 60)}, from ${time(step.span.start_us)} for ${time(step.span.duration_us)}, ${step.span.is_measured ? "measured" : "modelled"}`,
    }));
    const overlapping = plan.steps.filter((step) => step.span.lane > 0).length;
    const basis = plan.isMeasured ? "Durations are measured, each step alone" : plan.steps.some((step) => step.measured !== null) ? "Durations are measured where they are known, modelled elsewhere" : "Durations are modelled: nothing was measured here";
    const chart = boxes("Timeline of a run", all, {
      width: timeline.end_us, height: lanes, pick, tall: Math.min(600, 150 + 26 * lanes),
      x: { label: "time from the start of the run", format: time }, y: { label: "lane", format: () => "", size: 20 },
    });
    return { charts: [chart], element: el("div", {},
      el("p", { text: `${basis}; each starts when what it waits for has ended. ${overlapping === 0 ? "No step overlaps another one." : `${overlapping} ${overlapping === 1 ? "step overlaps" : "steps overlap"} others, if the device has room.`}` }),
      el("p", { text: `All steps one after the other: ${time(plan.total)}; with overlaps: ${time(timeline.end_us)}; a whole run measured: ${time(run)}.` }),
      el("ul", { class: "lines" }, plan.report.launches.map((line) => el("li", { text: line }))),
      chart.element) };
  }

  /** Points of steps over `x(step)`: `series` have `title`, `color` and `value(step)`. */
  function points(label, plan, { x, series, xAxis, yAxis, line, pick }) {
    const steps = plan.steps.filter((step) => isKnown(x(step)) && x(step) > 0 && series.some((one) => one.value(step) > 0)).sort((a, b) => x(a) - x(b));
    if (steps.length === 0) return null;
    const positive = (value) => (isKnown(value) && value > 0 ? value : null);
    const data = [steps.map(x), ...series.map((one) => steps.map((step) => positive(one.value(step))))];
    const spread = (values) => { const known = values.filter((value) => value !== null); return [Math.min(...known) / 2, Math.max(...known) * 2]; };
    const draw = (plot) => {
      if (!line) return;
      const pen = plot.ctx;
      pen.save();
      pen.strokeStyle = color("muted");
      pen.setLineDash([6, 4]);
      pen.beginPath();
      const { min, max } = plot.scales.x;
      pen.moveTo(plot.valToPos(min, "x", true), plot.valToPos(line(min), "y", true));
      pen.lineTo(plot.valToPos(max, "x", true), plot.valToPos(line(max), "y", true));
      pen.stroke();
      pen.restore();
    };
    const shapes = series.map((one) => ({ label: one.title, stroke: () => color(one.color), paths: () => null, points: { show: true, size: 7, fill: color(one.color), stroke: color(one.color) } }));
    const options = (width) => ({
      width, height: 420, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false, distr: 3, range: () => spread(data[0]) }, y: { distr: 3, range: () => spread(data.slice(1).flat()) } },
      axes: [axis(xAxis.label, xAxis.format, 34), axis(yAxis.label, yAxis.format, 92)],
      series: [{}, ...shapes], hooks: { draw: [draw] },
    });
    const chart = new Chart(label, options, data, pick);
    chart.zoom = chart.shift = () => {};
    chart.element.querySelector(".bar").replaceChildren(...series.map((one) => el("span", { class: `key ${one.color}`, text: one.title })));
    chart.at = (plot, left, top) => {
      let best = null;
      steps.forEach((step, at) => series.forEach((one, number) => {
        const value = data[number + 1][at];
        if (value === null) return;
        const distance = Math.hypot(plot.valToPos(data[0][at], "x") - left, plot.valToPos(value, "y") - top);
        if (distance < 20 && (best === null || distance < best.distance)) {
          best = { distance, step: step.number, text: `${step.number}: ${short(step.name, 60)}, ${one.title}: ${yAxis.format(value)}` };
        }
      }));
      return best;
    };
    return chart;
  }

  const rate = (value) => `${value >= 1000 ? (value / 1000).toPrecision(3) + " TFLOP/s" : value.toPrecision(3) + " GFLOP/s"}`;
  const intensity = (step) => (step.flops > 0 && step.traffic_bytes > 0 ? step.flops / step.traffic_bytes : null);
  const gflops = (step, us) => (step.flops > 0 && us > 0 ? step.flops / us / 1e3 : null);

  function roofline(plan, pick) {
    const byIntensity = points("Roofline: rate over arithmetic intensity; a step is bound by its units, or by memory and caches", plan, {
      x: intensity, pick,
      series: [
        { title: "bound", color: "bound", value: (step) => gflops(step, step.roofline) },
        { title: "modelled", color: "modelled", value: (step) => gflops(step, step.cost_us) },
        { title: "measured", color: "measured", value: (step) => gflops(step, step.measured) },
      ],
      xAxis: { label: "FLOP per byte of traffic", format: (value) => value.toPrecision(3) }, yAxis: { label: "rate", format: rate },
    });
    const byTime = points("Time over least time: on the line a kernel takes what arithmetic and traffic need", plan, {
      x: (step) => step.roofline, pick, line: (x) => x,
      series: [
        { title: "modelled", color: "modelled", value: (step) => step.cost_us },
        { title: "measured", color: "measured", value: (step) => step.measured },
      ],
      xAxis: { label: "least time", format: time }, yAxis: { label: "time", format: time },
    });
    const charts = [byIntensity, byTime].filter((chart) => chart !== null);
    const unknown = plan.steps.filter((step) => step.roofline === null).length;
    return { charts, element: el("div", {},
      el("p", { text: plan.steps.some((step) => step.measured !== null) ? "Modelled beside measured times." : "Modelled times; measured ones are unknown: nothing was measured here." }),
      unknown > 0 ? el("p", { text: `The least time of ${unknown} steps is unknown.` }) : null,
      charts.length === 0 ? el("p", { text: "No step has a known least time." }) : null, charts.map((chart) => chart.element)) };
  }

  function memory(plan, pick) {
    const lives = plan.report.lives.filter((life) => "arena" in life.memory);
    const end = (number) => plan.steps[number].span.start_us + plan.steps[number].span.duration_us;
    const all = lives.map((life) => {
      const last = Math.max(life.writer, ...life.readers);
      const name = `${life.dtype}[${life.shape.join(", ")}]`;
      return { x: plan.steps[life.writer].span.start_us, x2: Math.max(end(life.writer), ...life.readers.map(end)), y: life.memory.arena, y2: life.memory.arena + life.bytes,
        bytes: life.bytes, fill: () => color(life.writer % 2 ? "even" : "odd"), label: name, step: life.writer,
        text: `${name}, ${bytes(life.bytes)} at ${bytes(life.memory.arena)}: written by step ${life.writer}, last read by step ${last}` };
    });
    const events = all.flatMap((box) => [[box.x, box.bytes], [box.x2, -box.bytes]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let live = 0;
    const peak = events.reduce((most, [, change]) => Math.max(most, (live += change)), 0);
    const sum = (list) => list.reduce((total, value) => total + value, 0);
    const size = plan.manifest.arena_bytes;
    const chart = all.length === 0 ? null : boxes("Working memory over time: each box is a tensor, as long as it lives", all, {
      width: plan.report.timeline.end_us, height: size, pick, tall: 420,
      x: { label: "time from the start of the run", format: time }, y: { label: "address", format: bytes, size: 84 },
    });
    const largest = [...all].sort((a, b) => b.bytes - a.bytes).slice(0, 20);
    return { charts: chart ? [chart] : [], element: el("div", {},
      orchestrion.facts([
        ["working memory", bytes(size)], ["live at the same time, at most", bytes(peak)],
        ["all tensors between steps", bytes(sum(all.map((box) => box.bytes)))], ["constants", bytes(sum(plan.manifest.constant_bytes))],
        ["kernels", bytes(sum(plan.manifest.library_bytes))],
      ]),
      chart ? chart.element : el("p", { text: "No tensor lies in working memory." }),
      largest.length ? table("Largest tensors", [
        { title: "tensor", cell: (row) => row.label }, { title: "bytes", isNumber: true, cell: (row) => bytes(row.bytes) },
        { title: "address", isNumber: true, cell: (row) => bytes(row.y) },
        { title: "written by", cell: (row) => el("button", { type: "button", class: "link", text: `step ${row.step}`, onclick: () => pick(row.step) }) },
        { title: "lives for", isNumber: true, cell: (row) => time(row.x2 - row.x) },
      ], largest) : null) };
  }

  Object.assign(orchestrion, { timeline, roofline, memory });
})();
