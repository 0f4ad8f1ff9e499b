// Elements and figures. All text from a plan goes through `textContent`; nothing is parsed as markup.
"use strict";
const orchestrion = {};

(() => {
  /** An element with properties, listeners (`onclick`) and children; `null` children are left out. */
  function el(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "text") element.textContent = visible(value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined) continue;
      element.append(child instanceof Node ? child : visible(child));
    }
    return element;
  }

  /** A text whose control characters are shown as pictures. Line breaks stay. */
  function visible(text) {
    return String(text).replace(/[\u0000-\u0009\u000b-\u001f\u007f]/g, (c) =>
      c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0)));
  }

  /** A text of at most `most` characters. */
  function short(text, most) {
    const shown = visible(text);
    return shown.length > most ? shown.slice(0, most - 1) + "\u2026" : shown;
  }

  const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

  /** Microseconds, as they read best. */
  function time(us) {
    if (!isKnown(us)) return "unknown";
    if (Math.abs(us) >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
    if (Math.abs(us) >= 1e3) return `${(us / 1e3).toFixed(Math.abs(us) < 1e5 ? 2 : 1)} ms`;
    return `${us.toFixed(Math.abs(us) < 10 ? 2 : 1)} \u00b5s`;
  }

  function bytes(count) {
    if (!isKnown(count)) return "unknown";
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
    }
    return `${count} B`;
  }

  /** A share of a whole. */
  function percent(part, whole) {
    return isKnown(part) && isKnown(whole) && whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "unknown";
  }

  /** A table: columns with `title`, `cell(row)` and, for figures, `isNumber`. */
  function table(caption, columns, rows) {
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      el("table", {},
        el("caption", { text: caption }),
        el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.isNumber ? "number" : null, text: column.title })))),
        el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((column) =>
          el("td", { class: column.isNumber ? "number" : null }, column.cell(row))))))));
  }

  /** A color of the page's theme. */
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  Object.assign(orchestrion, { el, visible, short, isKnown, time, bytes, percent, table, color });
})();
