"""The style and the script of the report's page, which stand in the page: it needs no network."""

STYLE = """
:root { --ink: #22252b; --quiet: #6b7078; --line: #dfe2e6; --soft: #f6f7f9; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: white; font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
header, main { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 44px 0 8px; padding-top: 12px; border-top: 2px solid var(--ink); }
h3 { font-size: 16px; margin: 28px 0 8px; }
p.lead, .notes { color: var(--quiet); }
nav { margin: 12px 0; display: flex; gap: 16px; flex-wrap: wrap; }
a { color: var(--accent); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; }
th.text, td.text { text-align: left; }
thead th { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); vertical-align: bottom; }
tbody { border-bottom: 1px solid var(--line); }
tbody:last-child { border-bottom: 1.5px solid var(--ink); }
tbody tr:hover { background: var(--soft); }
th button { all: unset; cursor: pointer; white-space: pre-line; }
th button:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
.swatch { display: inline-block; width: 10px; height: 10px; margin-right: 7px; border-radius: 2px; }
.best { font-weight: 700; } .second { text-decoration: underline; }
.notes { font-size: 13px; padding-left: 18px; overflow-wrap: anywhere; } .notes .warning { color: #9a3d00; }
details { margin: 14px 0; } summary { cursor: pointer; font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 20px; }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); margin-top: 20px; }
figure { margin: 0; } figure.broad { grid-column: 1 / -1; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: 12.5px; color: var(--quiet); }
.viewer { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: 16px; }
.viewer .bar { display: flex; gap: 12px; align-items: center; flex-wrap: wrap; }
.viewer select, .viewer button { font: inherit; padding: 3px 10px; }
.prompt, .answer { white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt, .answer { font: 12.5px/1.45 ui-monospace, monospace; }
.prompt, .card { background: white; border: 1px solid var(--line); border-radius: 6px; padding: 10px; }
.prompt { margin: 10px 0; }
.sides { display: grid; grid-template-columns: minmax(260px, 1fr) 2fr; gap: 16px; align-items: start; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(280px, 1fr)); gap: 12px; }
.card { border-top: 4px solid; }
.card h4 { margin: 0; font-size: 14px; } .card .facts { color: var(--quiet); font-size: 12.5px; }
.worse { color: #9a3d00; font-weight: 600; } .better { color: #00694d; font-weight: 600; }
@media (max-width: 700px) { .sides { grid-template-columns: 1fr; } .figures { grid-template-columns: 1fr; } }
"""

SCRIPT = """
"use strict";
function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
}
function sortBy(head) {
  const table = head.closest("table"), column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  const rows = [...table.querySelectorAll("tbody tr")];
  rows.sort((one, two) => {
    const a = valueOf(one, column), b = valueOf(two, column);
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    const order = typeof a === "number" ? a - b : a.localeCompare(b);
    return down && typeof a === typeof b ? -order : order;
  });
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  rows.forEach((row) => body.append(row));
  [...table.tBodies].slice(1).forEach((empty) => empty.remove());
}
document.querySelectorAll("th button").forEach((button) =>
  button.addEventListener("click", () => sortBy(button.parentElement)));

function element(tag, className, text) {
  const found = document.createElement(tag);
  if (className) found.className = className;
  if (text !== undefined) found.textContent = text;
  return found;
}
function shown(score, answer) {
  return answer.falling ? String(Number(score.toPrecision(4))) : score.toFixed(2);
}
function card(answer, full) {
  const found = element("div", "card");
  found.style.borderTopColor = answer.colour;
  found.append(element("h4", "", answer.label));
  if (answer.error !== null) {
    found.append(element("p", "worse", "failed: " + answer.error));
    return found;
  }
  const score = answer.score === null ? "no score" : "score " + shown(answer.score, answer);
  const facts = element("div", "facts", score + ", kept " + answer.kept.toFixed(1) + " tokens a layer, "
    + answer.tokens + " new tokens, ended by " + answer.finish);
  const known = full && full.score !== null && answer.score !== null;
  if (known && full.score !== answer.score) {
    const change = answer.score - full.score;
    facts.append(element("span", change < 0 === answer.falling ? "better" : "worse",
      " (" + (change > 0 ? "+" : "") + shown(change, answer) + " against FullKV)"));
  }
  found.append(facts, element("div", "answer", answer.text === "" ? "(empty answer)" : answer.text));
  return found;
}
function startViewer(root) {
  const tasks = JSON.parse(root.querySelector("script").textContent);
  const pick = root.querySelector("select"), only = root.querySelector("input");
  const place = root.querySelector(".place");
  const shown = root.querySelector(".shown");
  let at = 0;
  Object.keys(tasks).forEach((name) => pick.append(new Option(name, name)));
  function isFlip(sample) {
    const full = sample.answers.find((answer) => answer.full);
    return full && sample.answers.some((answer) => answer.score !== full.score);
  }
  function draw() {
    const samples = tasks[pick.value].filter((sample) => !only.checked || isFlip(sample));
    at = Math.max(0, Math.min(at, samples.length - 1));
    place.textContent = samples.length ? (at + 1) + " of " + samples.length : "none";
    shown.replaceChildren();
    if (!samples.length) return;
    const sample = samples[at], full = sample.answers.find((answer) => answer.full);
    shown.append(element("div", "prompt", sample.head + "\\n[...]\\n" + sample.tail));
    const facts = element("p", "", "sample " + sample.id + ", prompt of " + sample.prompt_tokens + " tokens"
      + (sample.truncated ? ", cut in the middle" : "") + "; expected: ");
    facts.append(element("b", "", sample.references.join(" | ") || "nothing fixed"));
    const sides = element("div", "sides"), left = element("div"), right = element("div", "cards");
    if (full) left.append(card(full, full)); else left.append(element("p", "", "FullKV was not run on it."));
    sample.answers.filter((answer) => answer !== full).forEach((answer) => right.append(card(answer, full)));
    sides.append(left, right);
    shown.append(facts, sides);
  }
  root.querySelector(".back").addEventListener("click", () => { at -= 1; draw(); });
  root.querySelector(".on").addEventListener("click", () => { at += 1; draw(); });
  pick.addEventListener("change", () => { at = 0; draw(); });
  only.addEventListener("change", () => { at = 0; draw(); });
  draw();
}
document.querySelectorAll(".viewer").forEach(startViewer);
"""
