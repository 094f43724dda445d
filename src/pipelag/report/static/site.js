// What the pages do beyond showing: theme, filters of claims, copying a command, curves to look into. Nothing is fetched.
"use strict";
const root = document.documentElement;
const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
if (remembered()) root.dataset.theme = remembered();

function theme(button) {
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`); };
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private windows keep nothing */ }
    label();
    document.dispatchEvent(new Event("theme"));
  });
}

// Spellings of a text that are looked for: with its hyphens as spaces and without them, "utilization" as "utilisation".
const spellings = (text) => {
  const one = text.toLowerCase().replace(/z/g, "s");
  return [one.replace(/[-\u2010-\u2014]/g, " "), one.replace(/[-\u2010-\u2014]/g, "")];
};
const finds = (word, text) => spellings(word).some((one) => text.includes(one));

function filter(form) {
  const names = JSON.parse(document.getElementById("names").textContent); // of rows, lines and the like, by result
  const sections = [...document.querySelectorAll(".claims")];
  const lines = sections.flatMap((section) => [...section.querySelectorAll("li")].map((line) => ({
    line, section, verdict: line.dataset.verdict || "",
    text: spellings(`${section.querySelector("h3").textContent} ${line.textContent} ${names[line.dataset.result]}`).join(" "),
  })));
  const query = new URLSearchParams(location.search);
  form.text.value = query.get("q") || "";
  form.hidden = false;
  const apply = () => {
    const verdicts = new Set([...form.elements.verdict].filter((box) => box.checked).map((box) => box.value));
    const words = form.text.value.split(/\s+/).filter(Boolean);
    let shown = 0, without = 0;
    for (const each of lines) {
      const fits = (each.verdict ? verdicts.has(each.verdict) : verdicts.size === 3) && (!form.paper.value || form.paper.value === each.section.dataset.paper)
        && words.every((word) => finds(word, each.text));
      each.line.hidden = !fits;
      shown += fits && each.verdict !== "";
      without += fits && each.verdict === "";
    }
    for (const section of sections) section.hidden = !section.querySelector("li:not([hidden])");
    document.getElementById("hits").textContent = `${shown} of ${lines.filter((each) => each.verdict).length} claims${without ? `, ${without} without a claim` : ""}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
  if (query.get("q")) document.getElementById("claims").scrollIntoView();
}

function copying(button) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

// Lines of a panel on the x values of all of them, as uPlot wants them; with a spread, also its two edges.
function aligned(lines) {
  const tables = lines.flatMap((line) => [
    [line.x, line.y],
    ...(line.std ? [1, -1].map((side) => [line.x, line.y.map((y, i) => (y === null ? null : y + side * (line.std[i] || 0)))]) : []),
  ]);
  return uPlot.join(tables);
}

const themed = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// A line's colour on this theme's ground, on which black and the dark blue would not be seen.
const colour = (line) => (line.colour === "#000000" ? themed("--ink") : dark() && line.colour === "#0072B2" ? "#3D9BE0" : line.colour);

function chart(panel, box, width, log, visible) {
  const soft = themed("--soft"), rule = themed("--line");
  const series = [{}], bands = [];
  panel.lines.forEach((line, i) => {
    line.at = series.length;
    series.push({ label: line.label, stroke: colour(line), width: 1.6, dash: line.dash.map((d) => 2 * d), spanGaps: true, show: visible[i],
      points: { show: line.x.length <= 30, size: 5 } });
    if (line.std) {
      for (const edge of [0, 1]) series.push({ label: `${line.label} ${edge ? "-" : "+"} spread`, stroke: "transparent", spanGaps: true, show: visible[i], points: { show: false } });
      bands.push({ series: [line.at + 1, line.at + 2], fill: `${colour(line)}26` });
    }
  });
  const number = (value) => (value === null ? "" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(0) : String(+value.toPrecision(5)));
  const axis = (label, extra) => ({ label, stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule }, labelSize: 22,
    font: "12px system-ui", labelFont: "12px system-ui", values: (_, ticks) => ticks.map(number), ...extra });
  const levels = (u) => {
    u.ctx.save(); u.ctx.strokeStyle = soft; u.ctx.fillStyle = soft; u.ctx.setLineDash([6, 4]); u.ctx.font = `${11 * devicePixelRatio}px system-ui`;
    for (const [label, level] of Object.entries(panel.levels)) {
      const y = u.valToPos(level, "y", true);
      if (!(y >= u.bbox.top && y <= u.bbox.top + u.bbox.height)) continue;
      u.ctx.beginPath(); u.ctx.moveTo(u.bbox.left, y); u.ctx.lineTo(u.bbox.left + u.bbox.width, y); u.ctx.stroke();
      u.ctx.fillText(label, u.bbox.left + 6, y - 4);
    }
    u.ctx.restore();
  };
  const values = (u) => panel.lines.forEach((line) => {
    const value = u.cursor.idx === null || u.cursor.idx === undefined ? null : u.data[line.at][u.cursor.idx];
    line.out.textContent = value === null || value === undefined ? "" : number(value);
  });
  const [low, high] = panel.limits; // of the figure's axis; null: as the lines have it
  const range = low === null && high === null ? {} : { range: (_, min, max) => [low ?? min, high ?? max] };
  return new uPlot({
    width, height: Math.max(240, Math.min(380, width * 0.62)), series, bands, legend: { show: false },
    scales: { x: { time: false, distr: log.x ? 3 : 1 }, y: { distr: log.y ? 3 : 1, ...range } },
    axes: [axis(panel.x, { size: 34 }), axis(panel.y, { size: 58 })],
    hooks: { setCursor: [values], draw: [levels] }, cursor: { focus: { prox: 24 } }, focus: { alpha: 0.35 },
  }, aligned(panel.lines), box);
}

function explore(section) {
  const panels = JSON.parse(document.getElementById("curves").textContent);
  const boxes = { x: document.getElementById("log-x"), y: document.getElementById("log-y") };
  const positive = (key) => panels.every((panel) => panel.lines.every((line) => line[key].every((value) => value === null || value > 0)));
  for (const key of ["x", "y"]) if (!positive(key)) { boxes[key].disabled = true; boxes[key].checked = false; boxes[key].parentNode.title = "There are values that are not above zero"; }
  section.hidden = false;
  const charts = panels.map((panel) => {
    const box = document.createElement("div"), plot = document.createElement("div"), keys = document.createElement("div");
    box.className = "panel"; keys.className = "keys";
    if (panel.title) box.append(Object.assign(document.createElement("h3"), { textContent: panel.title }));
    if (panel.remark) box.append(Object.assign(document.createElement("p"), { className: "remark", textContent: panel.remark }));
    plot.setAttribute("role", "img"); plot.setAttribute("aria-label", `${panel.title || "Chart"}: ${panel.y} against ${panel.x}, ${panel.lines.length} lines`);
    box.append(plot, keys);
    document.getElementById("charts").append(box);
    const visible = panel.lines.map(() => true);
    const one = { panel, box, plot, visible, u: null };
    panel.lines.forEach((line, i) => {
      const button = document.createElement("button");
      button.type = "button"; button.setAttribute("aria-pressed", "true");
      const dash = line.dash.map((d) => 2 * d).join(" ");
      button.innerHTML = `<svg viewBox="0 0 26 8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" stroke-width="2.5" stroke-dasharray="${dash}"/></svg>`;
      line.key = button.querySelector("line");
      line.out = document.createElement("output");
      button.append(line.label || panel.y, line.out);
      button.addEventListener("click", () => {
        visible[i] = !visible[i];
        button.setAttribute("aria-pressed", String(visible[i]));
        for (let at = line.at; at <= line.at + (line.std ? 2 : 0); at++) one.u.setSeries(at, { show: visible[i] });
      });
      keys.append(button);
    });
    return one;
  });
  const draw = () => charts.forEach((one) => {
    if (one.u) one.u.destroy();
    one.panel.lines.forEach((line) => line.key.setAttribute("stroke", colour(line)));
    one.u = chart(one.panel, one.plot, one.box.clientWidth, { x: boxes.x.checked, y: boxes.y.checked }, one.visible);
  });
  draw();
  boxes.x.addEventListener("change", draw); boxes.y.addEventListener("change", draw);
  document.getElementById("whole").addEventListener("click", draw);
  document.addEventListener("theme", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}

document.addEventListener("DOMContentLoaded", () => {
  theme(document.getElementById("theme"));
  const form = document.getElementById("filter"), section = document.getElementById("explore");
  if (form) filter(form);
  document.querySelectorAll("[data-copy]").forEach(copying);
  if (matchMedia("(max-width: 60rem)").matches) document.querySelectorAll(".side details").forEach((each) => { each.open = false; });
  if (section && window.uPlot) explore(section);
});
