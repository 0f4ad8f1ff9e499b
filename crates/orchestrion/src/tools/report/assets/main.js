// The page: tabs, each of which is made when it is first shown, and beside them what is known of the selected step.
"use strict";
(() => {
  const { el, short, time, bytes, percent, table } = orchestrion;
  const data = JSON.parse(document.getElementById("data").textContent);
  const plan = orchestrion.planOf(data.report);
  const second = data.against ? orchestrion.planOf(data.against) : null;
  const aside = el("aside", { "aria-label": "Selected step", tabindex: 0 });
  let graph = null;
  let charts = [];

  function select(number) {
    aside.replaceChildren(orchestrion.details(plan, number, select));
    aside.scrollTop = 0;
    graph?.select(number);
  }

  function overview() {
    const { manifest } = plan;
    const { report } = manifest;
    const roofline = plan.steps.reduce((sum, step) => sum + (step.roofline ?? 0), 0);
    const host = plan.steps.filter((step) => step.isHost);
    const costliest = plan.report.by_kernel.slice(0, 10).map((kernel) => ({ ...kernel, first: plan.steps[kernel.steps[0]], isMeasured: kernel.steps.every((step) => plan.steps[step].measured !== null) }));
    const others = report.rivals_us ?? [];
    return el("div", {},
      orchestrion.facts([
        ["target", `${manifest.target} (${manifest.device}), ${manifest.precision}`],
        ["machine", manifest.machine || "unknown"],
        ["kernels by", manifest.kernel_compiler || "unknown"],
        ["modelled", time(plan.steps.reduce((sum, step) => sum + step.cost_us, 0))],
        ["measured here, step by step", plan.isMeasured ? time(plan.total) : "unknown"],
        ["measured here, whole", time(plan.report.run_us)],
        ["arithmetic and traffic take at least", `${time(roofline)}, ${percent(roofline, plan.total)} of the ${plan.isMeasured ? "measured" : "modelled"} time`],
        ["on the host", host.length === 0 ? "nothing" : `${host.length} steps, ${time(host.reduce((sum, step) => sum + step.us, 0))}`],
        ["working memory", bytes(manifest.arena_bytes)],
        ["from", `${report.operators} operators, ${report.primitives} primitives, ${report.units} units, ${report.candidates} candidate kernels${report.is_complete ? "" : " (a limit ended the enumeration)"}`],
        ["choice", `${report.solver_status || "unknown"}, at most ${(100 * report.solver_gap).toFixed(2)} % above the best`],
        ["without the superoptimizer", time(report.without_superoptimizer_us)],
        ["whole plans that were timed", others.length ? `${others.map(time).join(", ")} (this one first)` : "unknown"],
      ]),
      report.notes.length ? orchestrion.section("Notes", el("ul", {}, report.notes.map((note) => el("li", { text: note })))) : null,
      orchestrion.section("How a run is launched", el("ul", {}, plan.report.launches.map((line) => el("li", { text: line })))),
      orchestrion.section("What to try next", plan.report.advice.length ? el("ul", {}, plan.report.advice.map((line) => el("li", { text: line }))) : "Nothing that is known would help."),
      table("Costliest kernels", [
        { title: "first step", cell: ({ first }) => el("button", { type: "button", class: "link", text: `${first.number}: ${short(first.name, 60)}`, onclick: () => select(first.number) }) },
        { title: "steps", isNumber: true, cell: (kernel) => `${kernel.steps.length}` },
        { title: "time", isNumber: true, cell: (kernel) => `${time(kernel.us)} ${kernel.isMeasured ? "measured" : "modelled"}` },
        { title: "share", isNumber: true, cell: (kernel) => percent(kernel.us, plan.total) },
        { title: "of its least time", isNumber: true, cell: (kernel) => (kernel.roofline_us === null ? "unknown" : `${(kernel.us / kernel.roofline_us).toFixed(2)} times`) },
      ], costliest));
  }

  function licences() {
    const all = [...document.querySelectorAll("script.licence")];
    return el("div", {}, el("p", { text: `Made by Orchestrion ${plan.manifest.compiler}. This page fetches nothing. It holds these libraries:` }),
      all.map((licence) => orchestrion.section(licence.dataset.name, el("pre", { tabindex: 0, text: licence.textContent.trim() }))));
  }

  /** A tab of charts, which are told of a new theme. */
  const charted = (made) => { charts.push(...made.charts); return made.element; };

  const tabs = [
    second ? ["Comparison", () => orchestrion.against(plan, second, data.comparison, select)] : null,
    ["Overview", overview],
    ["Graph", () => { graph = new orchestrion.GraphView(plan, select); return graph.element; }],
    ["Timeline", () => charted(orchestrion.timeline(plan, select))],
    ["Roofline", () => charted(orchestrion.roofline(plan, select))],
    ["Memory", () => charted(orchestrion.memory(plan, select))],
    ["Steps", () => orchestrion.steps(plan, select)],
    ["Superoptimizer", () => orchestrion.searches(plan)],
    ["Licences", licences],
  ].filter((tab) => tab !== null).map(([title, make], at) => ({
    make, panel: el("div", { role: "tabpanel", id: `panel-${at}`, "aria-labelledby": `tab-${at}`, tabindex: 0, hidden: true }),
    tab: el("button", { type: "button", role: "tab", id: `tab-${at}`, "aria-controls": `panel-${at}`, "aria-selected": "false", tabindex: -1, text: title }),
  }));

  function open(at) {
    tabs.forEach(({ tab, panel }, number) => {
      tab.setAttribute("aria-selected", String(number === at));
      tab.tabIndex = number === at ? 0 : -1;
      panel.hidden = number !== at;
    });
    const { panel, make } = tabs[at];
    if (panel.childElementCount === 0) panel.append(make());
  }

  tabs.forEach(({ tab }, at) => {
    tab.addEventListener("click", () => open(at));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = (to + tabs.length) % tabs.length;
      open(next);
      tabs[next].tab.focus();
    });
  });

  function repaint() {
    graph?.draw();
    charts.forEach((chart) => chart.make(true));
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", repaint);
  const theme = el("button", { type: "button", text: "Light or dark", onclick: () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
    root.dataset.theme = isDark ? "light" : "dark";
    repaint();
  } });

  const against = second ? ` against ${second.manifest.target} in ${second.manifest.precision}` : "";
  document.getElementById("app").replaceWith(el("div", { id: "app" },
    el("header", {}, el("h1", { text: short(plan.manifest.model.name || "model", 100) }),
      el("p", { text: `${plan.steps.length} steps for ${short(plan.manifest.target, 60)} in ${plan.manifest.precision}${against}; ${time(plan.total)} ${plan.isMeasured ? "measured" : "modelled"}` }), theme),
    el("div", { role: "tablist", "aria-label": "Views" }, tabs.map(({ tab }) => tab)),
    el("main", {}, el("div", { class: "views" }, tabs.map(({ panel }) => panel)), aside)));
  select(null);
  open(0);
})();
