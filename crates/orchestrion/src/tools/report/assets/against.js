// Two reports side by side, by what changed most.
"use strict";
(() => {
  const { el, short, time, table } = orchestrion;
  const SHOWN = 300;

  function against(first, second, comparison, pick) {
    const name = (plan, number) => short(plan.steps[number].name, 40);
    const own = (numbers) => numbers.length === 0 ? "nothing" : el("span", {}, numbers.flatMap((number) => [el("button", { type: "button", class: "link", text: `${number}: ${name(first, number)}`, onclick: () => pick(number) }), " "]));
    const schedule = (plan, numbers) => numbers.map((number) => `${number}: ${plan.steps[number].name}\n  ${plan.steps[number].kernel?.schedule ?? plan.steps[number].kind}`).join("\n");
    const other = (numbers) => numbers.length === 0 ? "nothing" : el("details", {}, el("summary", { text: numbers.map((number) => `${number}: ${name(second, number)}`).join(" ") }), el("pre", { tabindex: 0, text: schedule(second, numbers) }));
    const change = (us) => `${us > 0 ? "+" : ""}${time(us)}`;
    const plans = [["first", first], ["second", second]];
    return el("div", {},
      table("The two plans", [
        { title: "plan", cell: ([which]) => which },
        { title: "model", cell: ([, plan]) => short(plan.manifest.model.name, 60) },
        { title: "target", cell: ([, plan]) => plan.manifest.target },
        { title: "precision", cell: ([, plan]) => plan.manifest.precision },
        { title: "compiler", cell: ([, plan]) => plan.manifest.compiler },
        { title: "steps", isNumber: true, cell: ([, plan]) => `${plan.steps.length}` },
        { title: "time", isNumber: true, cell: ([which]) => time(which === "first" ? comparison.first_us : comparison.second_us) },
      ], plans),
      el("p", { text: `${comparison.is_measured ? "Measured" : "Modelled"} times; steps that compute the same operators stand in one row.` }),
      table("What changed most", [
        { title: "change", isNumber: true, cell: (row) => change(row.second_us - row.first_us) },
        { title: "first", isNumber: true, cell: (row) => time(row.first_us) },
        { title: "second", isNumber: true, cell: (row) => time(row.second_us) },
        { title: "steps of the first plan", cell: (row) => own(row.first) },
        { title: "steps of the second plan", cell: (row) => other(row.second) },
      ], comparison.rows.slice(0, SHOWN)),
      comparison.rows.length > SHOWN ? el("p", { text: `${comparison.rows.length - SHOWN} other rows change less.` }) : null);
  }

  Object.assign(orchestrion, { against });
})();
