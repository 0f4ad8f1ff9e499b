// Where nodes of the graph are. Each block and each opened kernel is laid out by dagre alone, and only when it is shown; blocks stand
// below each other in the order in which they run. So plans of thousands of kernels take no longer than what is open.
"use strict";
(() => {
  const NODE = { width: 210, height: 46 };
  const PRIMITIVE = { width: 150, height: 24 };
  const PORT = { width: 170, height: 28 };
  const GAP = 36;
  const TITLE = 24;
  /** Ports that are drawn, at most. */
  const MOST_PORTS = 24;
  /** Primitives of an opened kernel that are drawn, at most. */
  const MOST_PRIMITIVES = 60;

  /** Places of `nodes` (with `id`, `width`, `height`) and `edges` (pairs of ids), with the size of all. */
  function layered(nodes, edges, gaps) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: gaps.side, ranksep: gaps.rank, ranker: nodes.length > 30 ? "longest-path" : "network-simplex" });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const node of nodes) graph.setNode(node.id, { width: node.width, height: node.height });
    for (const [from, to] of edges) graph.setEdge(from, to);
    dagre.layout(graph);
    const placed = nodes.map((node) => {
      const { x, y } = graph.node(node.id);
      return { ...node, x: x - node.width / 2, y: y - node.height / 2 };
    });
    const lines = graph.edges().map((edge) => ({ from: edge.v, to: edge.w, points: graph.edge(edge).points }));
    const size = graph.graph();
    return { nodes: placed, lines, width: Math.max(size.width || 0, 1), height: Math.max(size.height || 0, 1) };
  }

  /** The primitives of a kernel: a small graph within its node. */
  function primitives(step) {
    const all = step.computes.slice(0, MOST_PRIMITIVES).map(orchestrion.primitiveOf);
    const nodes = all.map((primitive, at) => ({ id: `p${at}`, kind: "primitive", label: primitive.word, ...PRIMITIVE }));
    const edges = [];
    all.forEach((reader, at) => all.forEach((writer, from) => {
      if (from !== at && writer.outputs.some((tensor) => reader.inputs.includes(tensor))) edges.push([`p${from}`, `p${at}`]);
    }));
    return layered(nodes, edges, { side: 14, rank: 16 });
  }

  /** A layout of a plan, with what is open. */
  class Layout {
    constructor(plan, mostOpen) {
      this.plan = plan;
      this.openBlocks = new Set(plan.steps.length <= mostOpen ? plan.blocks.keys() : []);
      this.openKernels = new Set();
      this.pieces = new Map();
      this.inner = new Map();
      this.blockOf = new Map();
      plan.blocks.forEach((block, number) => block.steps.forEach((step) => this.blockOf.set(step, number)));
      this.arrange();
    }

    toggleBlock(number) { this.toggle(this.openBlocks, number); }
    toggleKernel(step) {
      this.pieces.delete(this.blockOf.get(step));
      this.toggle(this.openKernels, step);
    }
    toggle(set, member) {
      if (!set.delete(member)) set.add(member);
      this.arrange();
    }
    showStep(step) {
      const block = this.blockOf.get(step);
      if (this.openBlocks.has(block)) return;
      this.openBlocks.add(block);
      this.arrange();
    }
    openAll(isOpen) {
      this.openBlocks = new Set(isOpen ? this.plan.blocks.keys() : []);
      this.arrange();
    }

    /** A block by itself. */
    piece(number) {
      if (!this.pieces.has(number)) {
        const { steps } = this.plan.blocks[number];
        const nodes = steps.map((step) => {
          if (!this.openKernels.has(step)) return { id: `s${step}`, kind: "step", step, ...NODE };
          if (!this.inner.has(step)) this.inner.set(step, primitives(this.plan.steps[step]));
          const inner = this.inner.get(step);
          return { id: `s${step}`, kind: "step", step, inner, width: Math.max(inner.width + 24, NODE.width), height: inner.height + NODE.height + 16 };
        });
        const edges = steps.flatMap((step) => this.plan.steps[step].feeds
          .filter((reader) => this.blockOf.get(reader) === number).map((reader) => [`s${step}`, `s${reader}`]));
        this.pieces.set(number, layered(nodes, edges, { side: 24, rank: 30 }));
      }
      return this.pieces.get(number);
    }

    /** Puts all blocks below each other. */
    arrange() {
      this.nodes = [];
      this.lines = [];
      this.frames = [];
      let y = this.ports(this.plan.manifest.inputs, "input", 0);
      this.plan.blocks.forEach((block, number) => {
        if (!this.openBlocks.has(number)) {
          this.nodes.push({ id: `b${number}`, kind: "block", block: number, x: -130, y, width: 260, height: 50 });
          y += 50 + GAP;
          return;
        }
        const piece = this.piece(number);
        const x = -piece.width / 2;
        const top = y + TITLE;
        this.frames.push({ block: number, x: x - 14, y, width: piece.width + 28, height: piece.height + TITLE + 14 });
        for (const node of piece.nodes) this.nodes.push({ ...node, x: node.x + x, y: node.y + top });
        for (const line of piece.lines) this.lines.push({ ...line, points: line.points.map((p) => ({ x: p.x + x, y: p.y + top })) });
        y = top + piece.height + 14 + GAP;
      });
      y = this.ports(this.plan.manifest.outputs, "output", y);
      this.height = y;
      this.byId = new Map(this.nodes.map((node) => [node.id, node]));
      this.connect();
      const xs = this.nodes.concat(this.frames);
      this.left = Math.min(-150, ...xs.map((box) => box.x));
      this.right = Math.max(150, ...xs.map((box) => box.x + box.width));
    }

    ports(ports, kind, y) {
      const shown = ports.slice(0, MOST_PORTS);
      const width = shown.length * (PORT.width + 12) - 12;
      shown.forEach((port, number) => this.nodes.push({
        id: `${kind}${number}`, kind, port, ...PORT, x: -width / 2 + number * (PORT.width + 12), y,
      }));
      return shown.length === 0 ? y : y + PORT.height + GAP;
    }

    /** The node that stands for a step: its own, or its block's. */
    nodeOf(step) { return this.byId.get(`s${step}`) ?? this.byId.get(`b${this.blockOf.get(step)}`); }

    /** Edges between blocks, and to inputs and outputs. */
    connect() {
      const known = new Set(this.lines.map((line) => `${line.from} ${line.to}`));
      const add = (from, to) => {
        if (!from || !to || from === to || known.has(`${from.id} ${to.id}`)) return;
        known.add(`${from.id} ${to.id}`);
        this.lines.push({ from: from.id, to: to.id, isLong: true, points: [
          { x: from.x + from.width / 2, y: from.y + from.height }, { x: to.x + to.width / 2, y: to.y }] });
      };
      for (const step of this.plan.steps) {
        step.feeds.forEach((reader) => add(this.nodeOf(step.number), this.nodeOf(reader)));
        for (const slot of step.slots) {
          const [[place, number]] = Object.entries(slot.place);
          if (place === "input" && !slot.written) add(this.byId.get(`input${number}`), this.nodeOf(step.number));
          if (place === "output" && slot.written) add(this.nodeOf(step.number), this.byId.get(`output${number}`));
        }
      }
    }
  }

  Object.assign(orchestrion, { Layout });
})();
