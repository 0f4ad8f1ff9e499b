// The graph on a canvas: what is in view is drawn, so that its size does not matter. Mouse: drag, wheel, click, double click. Keys: arrows
// select, Enter opens and closes, + - 0 zoom, Shift with arrows moves.
"use strict";
(() => {
  const { el, short, time, percent, color } = orchestrion;
  /** Plans of at most so many steps are shown open. */
  const MOST_OPEN = 60;
  const ZOOM = { least: 0.02, most: 3 };

  class GraphView {
    constructor(plan, onSelect) {
      this.plan = plan;
      this.onSelect = onSelect;
      this.layout = new orchestrion.Layout(plan, MOST_OPEN);
      this.view = null;
      this.focus = null;
      this.found = new Set();
      this.canvas = el("canvas", { class: "graph", tabindex: 0, role: "application", "aria-describedby": "graph-keys",
        "aria-label": "Graph of kernels" });
      this.status = el("p", { class: "status", role: "status" });
      this.search = el("input", { type: "search", id: "graph-search", placeholder: "kernel, operator or primitive" });
      this.search.addEventListener("input", () => this.find(this.search.value));
      this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.next(); });
      const button = (text, action) => el("button", { type: "button", text, onclick: action });
      this.element = el("div", {},
        el("div", { class: "bar" },
          el("label", { for: "graph-search", text: "Search" }), this.search,
          button("Zoom in", () => this.zoom(1.3)), button("Zoom out", () => this.zoom(1 / 1.3)), button("Fit", () => this.fit()),
          button("Open all blocks", () => this.openAll(true)), button("Close all blocks", () => this.openAll(false))),
        el("p", { id: "graph-keys", class: "hint", text:
          "Each box is a kernel over the operators it computes; the darker, the longer it takes. Drag and wheel, or arrows to select, Enter to open what is in a block or a kernel, + - 0 to zoom, Shift with arrows to move." }),
        this.canvas, this.status);
      this.listen();
    }

    listen() {
      const canvas = this.canvas;
      let drag = null;
      canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, y: event.offsetY, moved: false }; canvas.setPointerCapture(event.pointerId); });
      canvas.addEventListener("pointermove", (event) => {
        if (!drag) return;
        const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
        if (!drag.moved && Math.hypot(dx, dy) < 4) return;
        drag = { x: event.offsetX, y: event.offsetY, moved: true };
        this.move(dx, dy);
      });
      canvas.addEventListener("pointerup", (event) => {
        if (drag && !drag.moved) this.click(event.offsetX, event.offsetY);
        drag = null;
      });
      canvas.addEventListener("dblclick", (event) => { const node = this.at(event.offsetX, event.offsetY); if (node) this.toggle(node); });
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("focus", () => this.draw());
      new ResizeObserver(() => this.resize()).observe(canvas);
    }

    resize() {
      const { clientWidth: width, clientHeight: height } = this.canvas;
      if (width === 0 || height === 0) return;
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      if (this.view === null) this.fit(); else this.draw();
    }

    /** Shows the whole width, and from the top what is readable of the height. */
    fit() {
      const { clientWidth: width, clientHeight: height } = this.canvas;
      const { left, right, height: tall } = this.layout;
      const scale = Math.min(1, width / (right - left + 60), Math.max(height / (tall + 60), 0.5));
      this.view = { scale: Math.max(scale, ZOOM.least), x: width / 2 - (scale * (left + right)) / 2, y: 20 };
      this.draw();
    }

    move(dx, dy) { this.view.x += dx; this.view.y += dy; this.draw(); }

    zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
      if (this.view === null) return;
      const scale = Math.min(ZOOM.most, Math.max(ZOOM.least, this.view.scale * factor));
      const ratio = scale / this.view.scale;
      this.view = { scale, x: x - ratio * (x - this.view.x), y: y - ratio * (y - this.view.y) };
      this.draw();
    }

    /** The node or frame at a point of the canvas. */
    at(x, y) {
      const point = { x: (x - this.view.x) / this.view.scale, y: (y - this.view.y) / this.view.scale };
      const holds = (box) => point.x >= box.x && point.x <= box.x + box.width && point.y >= box.y && point.y <= box.y + box.height;
      return this.layout.nodes.find(holds) ?? this.layout.frames.find((frame) => holds(frame) && point.y < frame.y + 24);
    }

    click(x, y) {
      const node = this.at(x, y);
      if (!node) return;
      if (node.kind === "step") this.onSelect(node.step);
      else if (node.block !== undefined) this.toggle(node);
    }

    toggle(node) {
      if (node.kind === "step") this.layout.toggleKernel(node.step);
      else if (node.block !== undefined) this.layout.toggleBlock(node.block);
      this.focus = this.layout.byId.has(this.focus) ? this.focus : node.id ?? this.layout.nodeOf(this.plan.blocks[node.block].steps[0]).id;
      if (!this.layout.byId.has(this.focus) && node.block !== undefined) this.focus = this.layout.nodeOf(this.plan.blocks[node.block].steps[0]).id;
      this.draw();
    }

    openAll(isOpen) {
      this.status.textContent = isOpen ? "laying out \u2026" : "";
      // Lets the browser say so first.
      setTimeout(() => { this.layout.openAll(isOpen); this.status.textContent = ""; this.fit(); });
    }

    key(event) {
      const steps = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };
      const direction = steps[event.key];
      if (direction && event.shiftKey) this.move(-60 * direction[0], -60 * direction[1]);
      else if (direction) this.walk(direction[0] + direction[1]);
      else if (event.key === "Enter" || event.key === " ") { const node = this.layout.byId.get(this.focus); if (node) this.toggle(node); }
      else if (event.key === "+" || event.key === "=") this.zoom(1.3);
      else if (event.key === "-") this.zoom(1 / 1.3);
      else if (event.key === "0") this.fit();
      else return;
      event.preventDefault();
    }

    /** Selects the next or previous node. */
    walk(by) {
      const nodes = this.layout.nodes;
      if (nodes.length === 0) return;
      const at = nodes.findIndex((node) => node.id === this.focus);
      const node = nodes[Math.min(nodes.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
      this.show(node);
      if (node.kind === "step") this.onSelect(node.step);
    }

    /** Brings a node into view, and says what it is. */
    show(node) {
      this.focus = node.id;
      this.status.textContent = this.words(node);
      if (this.view === null) return;
      const { clientWidth: width, clientHeight: height } = this.canvas;
      const [x, y] = [this.view.x + this.view.scale * (node.x + node.width / 2), this.view.y + this.view.scale * (node.y + node.height / 2)];
      if (x < 40 || x > width - 40) this.view.x += width / 2 - x;
      if (y < 40 || y > height - 40) this.view.y += height / 2 - y;
      this.draw();
    }

    select(number) {
      if (number === null || !this.plan.steps[number]) return;
      this.layout.showStep(number);
      this.show(this.layout.nodeOf(number));
    }

    find(text) {
      const wanted = text.toLowerCase();
      const holds = (step) => [step.name, ...step.origins, ...step.computes].some((line) => line.toLowerCase().includes(wanted));
      this.found = new Set(wanted === "" ? [] : this.plan.steps.filter(holds).map((step) => step.number));
      this.status.textContent = wanted === "" ? "" : `${this.found.size} steps match; Enter selects the next one`;
      this.draw();
    }

    /** Selects the next step that matches. */
    next() {
      const all = [...this.found];
      if (all.length === 0) return;
      const node = this.layout.byId.get(this.focus);
      const current = node?.step ?? -1;
      this.onSelect(all.find((number) => number > current) ?? all[0]);
    }

    words(node) {
      if (node.kind === "step") {
        const step = this.plan.steps[node.step];
        return `step ${step.number}: ${short(step.name, 60)}, ${time(step.us)} ${step.measured === null ? "modelled" : "measured"}`;
      }
      if (node.kind === "block") return `block ${short(this.plan.blocks[node.block].name, 60)}, ${this.plan.blocks[node.block].steps.length} steps, closed`;
      return `${node.kind} ${short(node.port.name, 60)}: ${node.port.dtype}[${node.port.shape.join(", ")}]`;
    }

    draw() {
      if (this.view === null || this.canvas.width === 0 || this.isWaiting) return;
      this.isWaiting = true;
      requestAnimationFrame(() => { this.isWaiting = false; this.paint(); });
    }

    paint() {
      const ratio = window.devicePixelRatio || 1;
      const pen = this.canvas.getContext("2d");
      const { scale, x, y } = this.view;
      const [width, height] = [this.canvas.width / ratio, this.canvas.height / ratio];
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = color("panel");
      pen.fillRect(0, 0, width, height);
      pen.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * x, ratio * y);
      const view = { left: -x / scale, top: -y / scale, right: (width - x) / scale, bottom: (height - y) / scale };
      const isInView = (box) => box.x < view.right && box.x + box.width > view.left && box.y < view.bottom && box.y + box.height > view.top;
      const style = { line: color("line"), text: color("text"), muted: color("muted"), accent: color("accent"), frame: color("frame"), port: color("port"), host: color("host"), found: color("found"), node: color("node"), hot: color("hot") };
      for (const frame of this.layout.frames.filter(isInView)) this.paintFrame(pen, frame, style);
      this.paintLines(pen, view, style);
      const hasText = scale > 0.3;
      for (const node of this.layout.nodes.filter(isInView)) this.paintNode(pen, node, style, hasText);
    }

    paintFrame(pen, frame, style) {
      pen.strokeStyle = style.frame;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.roundRect(frame.x, frame.y, frame.width, frame.height, 8);
      pen.stroke();
      pen.fillStyle = style.muted;
      pen.font = "12px system-ui, sans-serif";
      pen.fillText(short(`\u2212 ${this.plan.blocks[frame.block].name}`, Math.floor(frame.width / 7)), frame.x + 8, frame.y + 16);
    }

    paintLines(pen, view, style) {
      for (const line of this.layout.lines) {
        const [first, last] = [line.points[0], line.points[line.points.length - 1]];
        if (Math.min(first.y, last.y) > view.bottom || Math.max(first.y, last.y) < view.top) continue;
        const isOwn = line.from === this.focus || line.to === this.focus;
        pen.strokeStyle = isOwn ? style.accent : style.line;
        pen.lineWidth = isOwn ? 2 : 1;
        pen.globalAlpha = line.isLong && !isOwn ? 0.55 : 1;
        pen.beginPath();
        pen.moveTo(first.x, first.y);
        if (line.isLong) {
          const bend = Math.min(80, Math.abs(last.y - first.y) / 2);
          pen.bezierCurveTo(first.x, first.y + bend, last.x, last.y - bend, last.x, last.y);
        } else {
          line.points.slice(1).forEach((point) => pen.lineTo(point.x, point.y));
        }
        pen.stroke();
        pen.globalAlpha = 1;
      }
    }

    paintNode(pen, node, style, hasText) {
      const step = node.kind === "step" ? this.plan.steps[node.step] : null;
      const block = node.kind === "block" ? this.plan.blocks[node.block] : null;
      const us = step ? step.us : block ? block.steps.reduce((sum, number) => sum + this.plan.steps[number].us, 0) : 0;
      const isFound = step ? this.found.has(step.number) : block ? block.steps.some((number) => this.found.has(number)) : false;
      pen.beginPath();
      pen.roundRect(node.x, node.y, node.width, node.height, step || block ? 6 : 14);
      pen.fillStyle = step?.isHost ? style.host : step || block ? style.node : style.port;
      pen.fill();
      if (us > 0) {
        // The share of the time, up to a fifth of the whole, as a tint.
        pen.globalAlpha = 0.45 * Math.min(1, (5 * us) / this.plan.total);
        pen.fillStyle = style.hot;
        pen.fill();
        pen.globalAlpha = 1;
      }
      pen.strokeStyle = node.id === this.focus ? style.accent : isFound ? style.found : style.frame;
      pen.lineWidth = node.id === this.focus || isFound ? 3 : 1;
      pen.stroke();
      if (!hasText) return;
      const letters = Math.floor(node.width / 7);
      pen.fillStyle = style.text;
      pen.font = "12px system-ui, sans-serif";
      const line = (text, at) => pen.fillText(short(text, letters), node.x + 8, node.y + at);
      if (step) {
        line(`${step.proof !== null ? "\u2713 " : ""}${step.number}: ${step.name}`, 18);
        pen.fillStyle = style.muted;
        line(`${time(step.us)} (${percent(step.us, this.plan.total)})  ${step.origins[0] ?? ""}`, 35);
        if (node.inner) this.paintInner(pen, node, style);
      } else if (block) {
        line(`+ ${block.name}`, 20);
        pen.fillStyle = style.muted;
        line(`${block.steps.length} steps, ${time(us)} (${percent(us, this.plan.total)})`, 38);
      } else {
        line(`${node.port.name}: ${node.port.dtype}[${node.port.shape.join(", ")}]`, 18);
      }
    }

    /** The primitives of an opened kernel. */
    paintInner(pen, node, style) {
      const [x, y] = [node.x + (node.width - node.inner.width) / 2, node.y + 46];
      pen.strokeStyle = style.line;
      pen.lineWidth = 1;
      for (const line of node.inner.lines) {
        pen.beginPath();
        line.points.forEach((point, at) => (at === 0 ? pen.moveTo(point.x + x, point.y + y) : pen.lineTo(point.x + x, point.y + y)));
        pen.stroke();
      }
      pen.font = "11px system-ui, sans-serif";
      for (const inner of node.inner.nodes) {
        pen.beginPath();
        pen.roundRect(inner.x + x, inner.y + y, inner.width, inner.height, 4);
        pen.fillStyle = style.port;
        pen.fill();
        pen.strokeStyle = style.frame;
        pen.stroke();
        pen.fillStyle = style.text;
        pen.fillText(short(inner.label, 22), inner.x + x + 6, inner.y + y + 16);
      }
    }
  }

  Object.assign(orchestrion, { GraphView });
})();
