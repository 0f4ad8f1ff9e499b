// All steps in a table: sorted by any column, filtered by text, a page at a time.
"use strict";
(() => {
  const { el, short, time, percent, bytes } = orchestrion;
  const PAGE = 200;

  function steps(plan, pick) {
    const columns = [
      { title: "step", value: (step) => step.number, cell: (step) => el("button", { type: "button", class: "link", text: `${step.number}: ${short(step.name, 48)}`, onclick: () => pick(step.number) }) },
      { title: "from", value: (step) => step.origins[0] ?? "", cell: (step) => short(step.origins[0] ?? "", 40) + (step.origins.length > 1 ? ` and ${step.origins.length - 1} more` : "") },
      { title: "measured", isNumber: true, value: (step) => step.measured ?? -1, cell: (step) => time(step.measured) },
      { title: "modelled", isNumber: true, value: (step) => step.cost_us, cell: (step) => time(step.cost_us) },
      { title: "share", isNumber: true, value: (step) => step.us, cell: (step) => percent(step.us, plan.total) },
      { title: "roofline", isNumber: true, value: (step) => (step.roofline === null ? -1 : step.roofline / step.us), cell: (step) => (step.roofline === null ? "unknown" : percent(step.roofline, step.us)) },
      { title: "traffic", isNumber: true, value: (step) => step.traffic_bytes, cell: (step) => bytes(step.traffic_bytes) },
      { title: "runs as", value: (step) => step.kind, cell: (step) => (step.isHost ? "on the host" : step.proof !== null ? "proved kernel" : step.kind) },
    ];
    let [sorted, isDescending, shown, filter] = [columns[4], true, PAGE, ""];
    const body = el("tbody");
    const heads = columns.map((column) => {
      const button = el("button", { type: "button", class: "sort", text: column.title, onclick: () => {
        isDescending = sorted === column ? !isDescending : Boolean(column.isNumber);
        sorted = column;
        fill();
      } });
      return el("th", { scope: "col", class: column.isNumber ? "number" : null }, button);
    });
    const more = el("button", { type: "button", onclick: () => { shown += PAGE; fill(); } });
    const count = el("p", { class: "status", role: "status" });
    const input = el("input", { type: "search", id: "steps-search", placeholder: "kernel, operator or primitive" });
    input.addEventListener("input", () => { filter = input.value.toLowerCase(); shown = PAGE; fill(); });

    function fill() {
      const holds = (step) => filter === "" || [step.name, ...step.origins, ...step.computes].some((line) => line.toLowerCase().includes(filter));
      const rows = plan.steps.filter(holds).sort((a, b) => {
        const [x, y] = [sorted.value(a), sorted.value(b)];
        const order = x < y ? -1 : x > y ? 1 : a.number - b.number;
        return isDescending ? -order : order;
      });
      body.replaceChildren(...rows.slice(0, shown).map((step) => el("tr", {}, columns.map((column) => el("td", { class: column.isNumber ? "number" : null }, column.cell(step))))));
      heads.forEach((head, at) => head.setAttribute("aria-sort", columns[at] === sorted ? (isDescending ? "descending" : "ascending") : "none"));
      more.hidden = rows.length <= shown;
      more.textContent = `Show ${Math.min(PAGE, rows.length - shown)} more`;
      count.textContent = `${Math.min(shown, rows.length)} of ${rows.length} steps`;
    }
    fill();
    return el("div", {},
      el("div", { class: "bar" }, el("label", { for: "steps-search", text: "Filter" }), input), count,
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Steps" }, el("table", {}, el("caption", { text: "Steps" }), el("thead", {}, el("tr", {}, heads)), body)), more);
  }

  Object.assign(orchestrion, { steps });
})();
