const colours = COLOURS, byId = (id) => document.getElementById(id);
const MOST = 800; // points of a line
const known = { version: -1, epoch: -1 };
let rows = [];

function make(tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}
const short = (x) => (x === null ? "–" : Math.abs(x) >= 1e4 ? x.toExponential(1) : String(Number(x.toPrecision(4))));

function chart(described, first, label) {
  const every = Math.ceil(rows.length / MOST);
  const shown = rows.filter((_, i) => i % every === 0 || i === rows.length - 1), x = shown.map((row) => row[0]);
  const lines = described.series.map((_, k) => shown.map((row) => row[first + k]));
  const values = lines.flat().filter((y) => y !== null);
  const left = x[0] ?? 0, right = Math.max(x[x.length - 1] ?? 1, left + 1e-9);
  const low = Math.min(0, ...values), most = Math.max(...values, low + 1e-9);
  const high = described.unit === "%" && low >= 0 ? 100 : 1.05 * most;
  const axis = { unit: "", names: [], ticks: [], log: false };
  const panel = {
    title: "", height: 150, image: "", rules: [], z: null, x: { ...axis, label, low: left, high: right },
    y: { ...axis, label: described.unit, low, high },
    series: lines.map((y, policy) => ({ policy, kind: "points", line: true, size: 0, x, y })),
  };
  const styles = lines.map((_, k) => ({ color: colours[k % colours.length], dashes: "" }));
  const name = `chart-${first}`, drawn = { label: `${described.title} against ${label}`, columns: 1, panels: [panel] };
  const figure = make("figure", { class: "chart", "data-chart": name });
  const legend = make("div", { class: "legend" });
  described.series.forEach((name, k) => {
    const key = make("span", { class: "key" });
    const latest = lines[k][lines[k].length - 1] ?? null;
    key.append(make("span", { class: "dot", style: "" }), `${name}: ${short(latest)} ${described.unit}`.trim());
    key.firstChild.style.background = colours[k % colours.length];
    legend.append(key);
  });
  figure.append(make("h3", {}, described.title));
  figures.show(figure, name, { styles, charts: { [name]: drawn } });
  figure.append(legend);
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
