"use strict";
const colours = COLOURS, byId = (id) => document.getElementById(id);
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [480, 210, 50, 38, 8];
const known = { version: -1, epoch: -1 };
let rows = [];

function make(tag, attributes = {}, text = "", space = "http://www.w3.org/1999/xhtml") {
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}
const draw = (tag, attributes, text) => make(tag, attributes, text, "http://www.w3.org/2000/svg");

/* A round step of which about four fit into a range. */
function stepOf(range) {
  const power = 10 ** Math.floor(Math.log10(range / 4));
  return [1, 2, 5, 10].map((k) => k * power).find((step) => range / step <= 4.5);
}
function ticks(low, high) {
  const step = stepOf(high - low), found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push(k * step);
  return found;
}
const short = (x) => (x === null ? "–" : Math.abs(x) >= 1e4 ? x.toExponential(1) : String(Number(x.toPrecision(4))));

/* At most one point per pixel: the last of each. */
function thin(points) {
  const last = new Map();
  for (const point of points) last.set(Math.round(point[0]), point);
  return [...last.values()];
}

function chart(described, first, label) {
  const xs = rows.map((row) => row[0]);
  const lines = described.series.map((_, k) => rows.map((row) => row[first + k]));
  const values = lines.flat().filter((y) => y !== null);
  const left = xs[0] ?? 0, right = Math.max(xs[xs.length - 1] ?? 1, left + 1e-9);
  let low = Math.min(0, ...values), high = described.unit === "%" && low >= 0 ? 100 : Math.max(...values, low + 1e-9);
  if (high > 1 && described.unit !== "%") high *= 1.05;
  const atX = (x) => LEFT + ((x - left) / (right - left)) * (WIDTH - LEFT - 12);
  const atY = (y) => HEIGHT - BOTTOM - ((y - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "data-chart": described.title,
    "aria-label": `${described.title} against ${label}` });
  for (const y of ticks(low, high)) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH - 12, y1: atY(y), y2: atY(y) }),
      draw("text", { x: LEFT - 6, y: atY(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(left, right)) {
    svg.append(draw("text", { x: atX(x), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, short(x)));
  }
  svg.append(draw("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, label));
  lines.forEach((ys, k) => {
    const points = thin(xs.map((x, i) => [atX(x), ys[i]]).filter(([, y]) => y !== null));
    svg.append(draw("polyline", { class: "line", stroke: colours[k % colours.length],
      points: points.map(([x, y]) => `${x.toFixed(1)},${atY(y).toFixed(1)}`).join(" ") }));
  });
  const figure = make("figure", { class: "chart" });
  const legend = make("div", { class: "legend" });
  described.series.forEach((name, k) => {
    const key = make("span", { class: "key" });
    const latest = lines[k][lines[k].length - 1] ?? null;
    key.append(make("span", { class: "dot", style: "" }), `${name}: ${short(latest)} ${described.unit}`.trim());
    key.firstChild.style.background = colours[k % colours.length];
    legend.append(key);
  });
  figure.append(make("h3", {}, described.title), svg, legend);
  return figure;
}

function show(state) {
  if (state.epoch !== known.epoch) rows = [];
  rows = rows.slice(0, state.first).concat(state.rows);
  [known.version, known.epoch] = [state.version, state.epoch];
  document.title = `${state.title} – kvgym watch`;
  byId("title").textContent = state.title;
  byId("about").replaceChildren(...state.about.map((line) => make("div", {}, line)));
  byId("status").textContent = state.status;
  byId("message").textContent = state.message;
  byId("message").hidden = !state.message;
  byId("tiles").replaceChildren(...state.tiles.map(([name, text]) => {
    const tile = make("div");
    tile.append(make("dt", {}, name), make("dd", {}, text));
    return tile;
  }));
  byId("lines").textContent = state.lines.join("\n");
  byId("lines").hidden = !state.lines.length;
  const runs = state.speed !== null && ["starting", "compiling", "running", "paused"].includes(state.status);
  byId("pause").hidden = byId("speeds").hidden = !runs;
  byId("pause").textContent = state.paused ? "Continue" : "Pause";
  if (state.speed !== null && state.speed !== known.speed) {
    known.speed = state.speed;
    const speeds = [0.1, 1, 5, 10, 20, 50, 100, 1000, 1e6];
    if (!speeds.includes(state.speed)) speeds.push(state.speed);
    byId("speed").replaceChildren(...speeds.sort((a, b) => a - b).map((speed) =>
      make("option", { value: speed, ...(speed === state.speed ? { selected: "" } : {}) },
        speed === 1e6 ? "as fast as it can" : `${speed} ×`)));
  }
  let first = 1;
  byId("charts").replaceChildren(...state.charts.map((described) => {
    const made = chart(described, first, state.x_label);
    first += described.series.length;
    return made;
  }));
}

const post = (control) => fetch("control", { method: "POST", body: JSON.stringify(control) });
byId("pause").addEventListener("click", () => post({ paused: byId("pause").textContent === "Pause" }));
byId("speed").addEventListener("change", (event) => post({ speed: Number(event.target.value) }));

async function follow() {
  for (;;) {
    try {
      const answer = await fetch(`state?version=${known.version}&epoch=${known.epoch}&rows=${rows.length}`);
      if (!answer.ok) throw new Error();
      show(await answer.json());
    } catch {
      byId("status").textContent = "kvgym watch has ended";
      byId("pause").hidden = byId("speeds").hidden = true;
      return;
    }
    await new Promise((next) => setTimeout(next, 100));
  }
}
follow();
