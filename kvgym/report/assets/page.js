// Draws the figures of a report, with values under the pointer, the finger or the arrow keys. Selection and colours need
// no script, see page.css.
(() => {
  const { across, mark, place, redraw, save, share, show: draw } = figures;
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const boxes = data.policies.map((_, i) => document.getElementById(`show-${i}`));
  const REACH = 14; // distance from its axes at which a panel still responds, in units of the picture
  const STEPS = 100; // key presses from one end of a line to the other
  const tip = make("div", { id: "tip", role: "status", hidden: "" });
  document.body.append(tip);
  let current = null; // { svg, panel, series, index, x }

  function make(tag, attributes = {}, text = "") {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  }

  // Number format of the page: four significant digits, integers without decimals.
  function number(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    if (size < 1e-4) return value.toExponential(digits - 1);
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  }

  const written = (quantity, value) =>
    quantity.names.length ? quantity.names[Math.round(value)] : number(value) + (quantity.unit && ` ${quantity.unit}`);

  function interval(series, axis, quantity, index) {
    const [low, high] = [`${axis}_low`, `${axis}_high`].map((end) => (series[end] || [])[index]);
    if (low === undefined || low === null || high === null || low === high) return "";
    return ` (95 % interval ${number(low)} – ${written(quantity, high)})`;
  }

  const isShown = (series) => series.policy === null ||
    [series.policy, ...(series.also ?? [])].some((i) => !boxes[i] || boxes[i].checked);
  const shownIn = (panel) => panel.series.filter((series) => !series.quiet && isShown(series));

  // Index of the step that is valid at x, -1 before the first.
  function holding(series, x) {
    let [low, high] = [0, series.x.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (series.x[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function nearestPoint(panel, px, py, list) {
    let best = null;
    for (const series of list) {
      series.x.forEach((x, index) => {
        if (x === null || series.y[index] === null) return;
        const [qx, qy] = place(panel, x, series.y[index]);
        const distance = Math.hypot(px - qx, py - qy);
        if (!best || distance < best.distance) best = { panel, series, index, x, distance };
      });
    }
    return best;
  }

  function nearestStep(panel, x, py, list) {
    let best = null;
    for (const series of list) {
      const index = holding(series, x);
      if (index < 0) continue;
      const distance = Math.abs(py - place(panel, x, series.y[index])[1]);
      if (!best || distance < best.distance) best = { panel, series, index, x, distance };
    }
    return best;
  }

  function nearestRow(panel, py, list) {
    const away = (series) => Math.abs(py - place(panel, panel.x.low, series.y[0])[1]);
    const series = list.reduce((a, b) => (a && away(a) <= away(b) ? a : b), null);
    return series && { panel, series, index: 0, x: series.x[0] };
  }

  function cellAt(panel, column, row, list) {
    for (const series of list) {
      const index = series.x.findIndex((x, i) => x === column && series.y[i] === row);
      if (index >= 0) return { panel, series, index, x: column };
    }
    return null;
  }

  // The item at a position of the picture, or null.
  function pick(panels, px, py) {
    for (const panel of panels) {
      const [left, top, right, bottom] = panel.box;
      if (px < left - REACH || px > right + REACH || py < top - REACH || py > bottom + REACH) continue;
      const list = shownIn(panel);
      if (!list.length) return null;
      const part = Math.min(1, Math.max(0, (px - left) / (right - left)));
      const x = across(panel.x, part);
      const y = across(panel.y, (bottom - py) / (bottom - top));
      switch (list[0].kind) {
        case "steps": return nearestStep(panel, x, py, list);
        case "bars": return nearestRow(panel, py, list);
        case "cells": return cellAt(panel, Math.round(x), Math.round(y), list);
        default: return nearestPoint(panel, px, py, list);
      }
    }
    return null;
  }

  function named(series, tag) {
    const line = make(tag);
    if (series.policy !== null) {
      const dot = make("span", { class: "dot" });
      dot.style.background = data.styles[series.policy].color;
      line.append(dot);
    }
    line.append(series.name);
    return line;
  }

  // Other points at the same position as one.
  function sameplace(panel, series, index) {
    if (series.kind !== "points") return [];
    const [px, py] = place(panel, series.x[index], series.y[index]);
    const near = (other, i) => {
      if (other.x[i] === null || other.y[i] === null) return false;
      const [qx, qy] = place(panel, other.x[i], other.y[i]);
      return Math.hypot(px - qx, py - qy) < 2;
    };
    return shownIn(panel).filter((other) => other !== series && other.x.some((_, i) => near(other, i)));
  }

  function describe({ panel, series, index, x }) {
    const lines = [];
    if (panel.title && panel.title !== series.name) lines.push(make("div", { class: "soft" }, panel.title));
    if (series.kind === "steps") {
      lines.push(make("div", {}, `${panel.x.label}: ${written(panel.x, x)}`));
      const rows = shownIn(panel)
        .map((other) => ({ other, at: holding(other, x) }))
        .filter((row) => row.at >= 0)
        .sort((a, b) => b.other.y[b.at] - a.other.y[a.at]);
      const table = make("table");
      for (const { other, at } of rows) {
        const row = make("tr", other === series ? { class: "nearest" } : {});
        row.append(named(other, "th"), make("td", {}, written(panel.y, other.y[at])));
        table.append(row);
      }
      lines.push(make("div", {}, `${panel.y.label}:`), table);
      return lines;
    }
    lines.push(named(series, "strong"));
    for (const axis of series.kind === "bars" ? ["x"] : ["x", "y", "z"]) {
      if (!panel[axis] || !series[axis]) continue;
      const value = `${panel[axis].label}: ${written(panel[axis], series[axis][index])}`;
      lines.push(make("div", {}, value + interval(series, axis, panel[axis], index)));
    }
    const others = sameplace(panel, series, index);
    if (others.length) {
      const also = make("div", { class: "soft" }, "In the same place: ");
      others.forEach((other, i) => also.append(i ? ", " : "", named(other, "span")));
      lines.push(also);
    }
    if (series.text[index]) lines.push(make("div", { class: "soft" }, series.text[index]));
    return lines;
  }

  function hide() {
    if (!current) return;
    current.svg.querySelectorAll(".hover").forEach((element) => element.remove());
    tip.hidden = true;
    current = null;
  }

  // Show the selected item next to its position; announced if it was reached by keys.
  function show(svg, picked, byKeys) {
    hide();
    if (!picked) return;
    current = { svg, ...picked };
    const { panel, series, index, x } = picked;
    const [px, py] = place(panel, x, series.y[index]);
    const [left, top, right, bottom] = panel.box;
    if (series.kind === "steps") mark(svg, "line", { class: "hover", x1: px, x2: px, y1: top, y2: bottom });
    if (series.kind === "cells") {
      const [width, height] = [(right - left) / panel.x.names.length, (bottom - top) / panel.y.names.length];
      mark(svg, "rect", { class: "hover", x: px - width / 2, y: py - height / 2, width, height });
    } else mark(svg, "circle", { class: "hover", cx: px, cy: py, r: 4.5 });
    tip.setAttribute("aria-live", byKeys ? "polite" : "off");
    tip.replaceChildren(...describe(picked));
    tip.hidden = false;
    const frame = svg.getBoundingClientRect();
    const unit = frame.width / svg.viewBox.baseVal.width;
    const [x0, y0] = [frame.left + px * unit, frame.top + py * unit];
    const { offsetWidth: width, offsetHeight: height } = tip;
    const page = document.documentElement;
    let tx = x0 + 16;
    if (tx + width > page.clientWidth - 8) tx = x0 - 16 - width;
    const inside = (value, room) => Math.max(8, Math.min(value, room - 8));
    let ty = y0 - height / 2;
    if (tx < 8) ty = y0 - height - 20 < 8 ? y0 + 24 : y0 - height - 20; // no space next to it
    tip.style.left = `${inside(tx, page.clientWidth - width) + window.scrollX}px`;
    tip.style.top = `${inside(ty, page.clientHeight - height) + window.scrollY}px`;
  }

  function fromPointer(svg, panels, event) {
    const frame = svg.getBoundingClientRect();
    const unit = frame.width / svg.viewBox.baseVal.width;
    show(svg, pick(panels, (event.clientX - frame.left) / unit, (event.clientY - frame.top) / unit), false);
  }

  // Target of an arrow key: left and right move along a line, up and down between lines.
  function neighbour(panels, { panel, series, index, x }, [dx, dy]) {
    const all = panels.flatMap((p) => shownIn(p).map((s) => ({ panel: p, series: s })));
    if (series.kind === "cells") {
      return cellAt(panel, series.x[index] + dx, series.y[index] + dy, [series]);
    }
    if (dy || series.kind === "bars") {
      const to = all[all.findIndex((entry) => entry.series === series) + (dx - dy)];
      if (!to || !to.series.x.length) return null;
      if (to.series.kind === "steps") {
        return { ...to, x, index: Math.max(0, holding(to.series, x)) };
      }
      const gap = (i) => Math.abs(to.series.x[i] - series.x[index]);
      const at = to.series.x.reduce((best, _, i) => (gap(i) < gap(best) ? i : best), 0);
      return { ...to, index: to.series.kind === "bars" ? 0 : at, x: to.series.x[to.series.kind === "bars" ? 0 : at] };
    }
    if (series.kind === "steps") {
      const part = share(panel.x, x) + dx / STEPS;
      if (part < -1e-9 || part > 1 + 1e-9) return null;
      const to = across(panel.x, part);
      return holding(series, to) < 0 ? null : { panel, series, index: holding(series, to), x: to };
    }
    for (let to = index + dx; to >= 0 && to < series.x.length; to += dx) {
      if (series.x[to] !== null && series.y[to] !== null) return { panel, series, index: to, x: series.x[to] };
    }
    return null;
  }

  // Zoom: pictures with the same whole axis share the part that they show.
  const pictures = []; // { svg, name, panels }
  const zoomed = (panels) => panels.find((panel) => panel.x.whole)?.x;
  function zoom(panels, low, high) {
    const [first, last] = zoomed(panels).whole, least = (last - first) * 1e-4;
    const ends = high - low > least ? [Math.max(low, first), Math.min(high, last)] : [first, last];
    hide();
    for (const one of pictures) {
      const axes = one.panels.map(({ x }) => x).filter(({ whole }) => whole && whole[0] === first && whole[1] === last);
      axes.forEach((x) => { [x.low, x.high] = ends; });
      if (axes.length) redraw(one.svg, one.name, data);
    }
  }
  function reset(panels) { // to the whole axis, and from there to what was shown at first
    const { low, high, whole, start } = zoomed(panels);
    zoom(panels, ...(low === whole[0] && high === whole[1] ? start : whole));
  }
  function timeAt(svg, panel, event) {
    const frame = svg.getBoundingClientRect(), [left, , right] = panel.box;
    const x = ((event.clientX - frame.left) * svg.viewBox.baseVal.width) / frame.width;
    return across(panel.x, Math.min(1, Math.max(0, (x - left) / (right - left))));
  }
  function addZoom(svg, panels) {
    const panel = panels.find(({ x }) => x.whole);
    let from = null; // where the pointer went down: { x, time }
    let [taps, last] = [0, 0]; // of a double click, both must be here
    const ended = () => { from = null; };
    svg.addEventListener("pointerdown", (event) => {
      [taps, last] = [event.timeStamp - last < 700 ? taps + 1 : 1, event.timeStamp];
      if (event.pointerType === "touch" || event.button) return;
      from = { x: event.clientX, time: timeAt(svg, panel, event) };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!from || Math.abs(event.clientX - from.x) < 5) return;
      hide();
      svg.querySelectorAll(".chosen").forEach((element) => element.remove());
      const ends = [from.time, timeAt(svg, panel, event)].sort((a, b) => a - b);
      for (const { x, box: [, top, , bottom], ...rest } of panels.filter((one) => one.x.whole)) {
        const [left, right] = ends.map((time) => place({ x, box: panels[0].box, ...rest }, time, null)[0]);
        mark(svg, "rect", { class: "chosen", x: left, y: top, width: right - left, height: bottom - top });
      }
    });
    svg.addEventListener("pointerup", (event) => {
      if (from && Math.abs(event.clientX - from.x) >= 5) {
        zoom(panels, ...[from.time, timeAt(svg, panel, event)].sort((a, b) => a - b));
      }
      ended();
    });
    svg.addEventListener("pointercancel", ended);
    svg.addEventListener("dblclick", () => taps > 1 && reset(panels));
    svg.addEventListener("keydown", (event) => {
      const { low, high } = panel.x, half = (high - low) / 2;
      const middle = current && current.svg === svg ? current.x : low + half;
      if (event.key === "+") zoom(panels, middle - half / 2, middle + half / 2);
      if (event.key === "-") zoom(panels, middle - 2 * half, middle + 2 * half);
      if (event.key === "0") reset(panels);
    });
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  function fromKey(svg, panels, event) {
    if (event.key === "Escape") hide();
    if (!ARROWS[event.key]) return;
    event.preventDefault();
    if (current && current.svg === svg) {
      const to = neighbour(panels, current, ARROWS[event.key]);
      if (to) show(svg, to, true);
      return;
    }
    for (const panel of panels) {
      for (const series of shownIn(panel)) {
        const index = series.x.findIndex((x, i) => x !== null && series.y[i] !== null);
        if (index >= 0) return show(svg, { panel, series, index, x: series.x[index] }, true);
      }
    }
  }

  for (const parent of document.querySelectorAll("[data-chart]")) {
    const name = parent.dataset.chart, { panels } = data.charts[name], svg = draw(parent, name, data);
    const button = make("button", { type: "button", class: "save", "aria-label": `Save ${name} as an SVG file` }, "SVG");
    button.addEventListener("click", () => save(svg, name, data, (i) => isShown({ policy: i })));
    parent.append(button);
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-describedby", "how-to-read");
    svg.addEventListener("pointerdown", (event) => fromPointer(svg, panels, event));
    svg.addEventListener("pointermove", (event) => fromPointer(svg, panels, event));
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    svg.addEventListener("keydown", (event) => fromKey(svg, panels, event));
    pictures.push({ svg, name, panels });
    if (zoomed(panels)) addZoom(svg, panels);
    svg.addEventListener("blur", () => current && current.svg === svg && hide());
  }
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("[data-chart]")) hide();
  });
  window.addEventListener("resize", hide);

  const choice = document.getElementById("choice");
  if (choice) {
    choice.addEventListener("change", hide);
    for (const [text, checked] of [["All", true], ["None", false]]) {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        boxes.forEach((box) => { box.checked = checked; });
        hide();
      });
      choice.append(button);
    }
  }
  document.querySelectorAll(".needs-script").forEach((element) => { element.hidden = false; });
})();
