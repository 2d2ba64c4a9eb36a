"use strict";
// Draws figures as SVG from their numbers, which kvgym/report/chart.py describes. Lengths are in units of the picture.
const figures = (() => {
  const [WIDTH, SIZE, LINE, GAP, INK] = [400, 9.5, 13, 20, "currentColor"];
  const SLANT = (35 * Math.PI) / 180; // of names that do not fit side by side
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${SIZE}px sans-serif`;
  const wide = (text) => pen.measureText(text).width;
  const at = (value) => Math.round(value * 100) / 100;

  function mark(parent, tag, attributes = {}, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    parent.append(element);
    return element;
  }

  // Conversion between an axis' values and the picture's units.
  const scaled = (axis, value) => (axis.log ? Math.log(value) : value);
  const share = (axis, value) => axis.high === axis.low ? 0.5
    : (scaled(axis, value) - scaled(axis, axis.low)) / (scaled(axis, axis.high) - scaled(axis, axis.low));
  function across(axis, part) {
    const value = scaled(axis, axis.low) + part * (scaled(axis, axis.high) - scaled(axis, axis.low));
    return axis.log ? Math.exp(value) : value;
  }
  function place(panel, x, y) {
    const [left, top, right, bottom] = panel.box;
    const inside = (axis, value) => Math.max(-99, Math.min(99, share(axis, value ?? axis.low))); // 0 on a log axis
    return [left + inside(panel.x, x) * (right - left), bottom - inside(panel.y, y) * (bottom - top)].map(at);
  }

  const titled = (axis) => axis.label + (axis.unit && ` (${axis.unit})`);
  const labelled = (axis, value) =>
    axis.names.length ? axis.names[value] : value.toLocaleString("en-US", { maximumSignificantDigits: 10 });

  function cut(text, room) {
    let short = text;
    while (short.length > 1 && wide(short) > room) short = `${short.slice(0, -2).trimEnd()}…`;
    return short;
  }

  // Multiples of a step on an axis.
  function multiples(axis, step) {
    const [low, high] = [Math.min(axis.low, axis.high), Math.max(axis.low, axis.high)];
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) {
      found.push(Number((k * step).toPrecision(12)));
    }
    return found;
  }

  // Candidates for the ticks of an axis: round numbers, fewer each time.
  function candidates(axis) {
    const first = Math.floor(Math.log10(Math.abs(axis.high - axis.low) / 8));
    const steps = [0, 1, 2, 3].flatMap((k) => [1, 2, 5].map((factor) => multiples(axis, factor * 10 ** (first + k))));
    let lists = [];
    if (axis.log) {
      const powers = multiples({ low: Math.log10(axis.low) - 1, high: Math.log10(axis.high) }, 1);
      const within = (value) => value >= axis.low && value <= axis.high;
      lists = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]].map((factors) => powers.flatMap((k) =>
        factors.map((f) => Number((f * 10 ** k).toPrecision(12)))).filter(within));
      for (const every of [2, 3]) lists.push(lists[3].filter((_, i) => i % every === 0));
    }
    const many = (list) => list.length > 2;
    return [axis.ticks, ...lists.filter(many), ...steps.filter(many), ...lists, ...steps].filter((list) => list.length);
  }

  // The first ticks whose labels fit along an axis of this length.
  function ticksOf(axis, length, horizontal) {
    if (axis.names.length) {
      const every = Math.ceil(axis.names.length / (horizontal ? 16 : length / 12));
      return axis.names.map((_, i) => i).filter((i) => i % every === 0);
    }
    const room = (value) => (horizontal ? wide(labelled(axis, value)) + 12 : 16);
    const apart = (list) => list.every((value, i) => !i ||
      Math.abs(share(axis, value) - share(axis, list[i - 1])) * length >= (room(value) + room(list[i - 1])) / 2);
    let found = [];
    for (found of candidates(axis)) if (found.length <= 8 && apart(found)) break;
    return found;
  }

  // Places of the entries of a legend, in rows.
  function flow(entries, room) {
    let [x, row] = [0, 0];
    return entries.map((entry) => {
      const width = (entry.line ? 28 : 13) + wide(entry.name) + 12;
      if (x && x + width > room) [x, row] = [0, row + 1];
      x += width;
      return { ...entry, x: x - width, row };
    });
  }

  function legend(svg, entries, left, top) {
    for (const { name, color, alpha, line, dashes, marker, x, row } of entries) {
      const [x0, y0] = [at(left + x), at(top + LINE * row + SIZE / 2)];
      if (line) {
        mark(svg, "path", { d: `M${x0} ${y0}h22`, stroke: color, "stroke-width": 2.2, "stroke-dasharray": dashes });
        if (marker) mark(svg, "path", { d: marker, fill: color, transform: `translate(${x0 + 11} ${y0})` });
      } else mark(svg, "rect", { x: x0, y: y0 - 4, width: 8, height: 8, fill: color, "fill-opacity": alpha });
      mark(svg, "text", { x: at(x0 + (line ? 27 : 12)), y: at(y0 + 3.4) }, name);
    }
  }

  // Set the places of all panels, their headings and ticks; return the height of the picture.
  function arrange({ panels, columns }) {
    let [left, right, top] = [14, 8, 3];
    const filled = (panel) => panel.series.filter((s) => s.policy === null && s.fill).map((s) =>
      ({ name: s.name, color: s.color, alpha: s.fill }));
    panels.forEach((panel, k) => {
      panel.bars = panel.series.some((s) => s.kind === "bars");
      panel.yTicks = panel.z && !panel.series.length ? [] : ticksOf(panel.y, panel.height, false);
      panel.yLabels = k % columns ? [] : panel.yTicks.map((v) => cut(labelled(panel.y, v), 0.4 * WIDTH));
      left = Math.max(left, ...panel.yLabels.map((text) => wide(text) + 7));
      if (panel.bars) right = Math.max(right, ...panel.series.map((s) => wide(s.notes[0]) + 10));
    });
    const width = (WIDTH - left - right - GAP * (columns - 1)) / columns;
    for (let first = 0; first < panels.length; first += columns) {
      const row = panels.slice(first, first + columns);
      row.forEach((panel, i) => {
        const above = panels[first + i - columns], entries = filled(panel);
        panel.heading = panel.title === above?.title ? "" : cut(panel.title, columns > 1 ? width : WIDTH - left);
        panel.legend = entries.length > 1 ? flow(entries, WIDTH - left) : [];
        panel.yTitle = i || titled(panel.y) === (above && titled(above.y)) ? "" : titled(panel.y);
        const lines = (panel.heading ? 1 : 0) + (panel.legend.length && panel.legend.at(-1).row + 1) + (panel.yTitle ? 1 : 0);
        panel.head = LINE * lines + (panel.yTitle ? 6 : 3);
      });
      top += Math.max(...row.map((panel) => panel.head));
      let foot = 0;
      row.forEach((panel, i) => {
        const x = left + i * (width + GAP), below = panels[first + i + columns];
        panel.box = [x, top, x + width, top + panel.height];
        const same = below && ["label", "low", "high", "log"].every((key) => panel.x[key] === below.x[key]);
        panel.xTicks = ticksOf(panel.x, width, true);
        const names = panel.x.names.length > 0 && panel.xTicks.map((v) => labelled(panel.x, v));
        panel.slanted = names && names.some((name) => wide(name) + 6 > width / names.length);
        panel.xLabels = same ? [] : panel.xTicks.map((v) => panel.slanted
          ? cut(labelled(panel.x, v), Math.min(95, place(panel, v, null)[0] / Math.cos(SLANT) - 4)) : labelled(panel.x, v));
        panel.xTitle = below && titled(below.x) === titled(panel.x) ? "" : titled(panel.x);
        const deep = panel.slanted ? Math.max(...panel.xLabels.map(wide)) * Math.sin(SLANT) + 8 : LINE;
        panel.deep = panel.xLabels.length ? deep + 2 : 0;
        foot = Math.max(foot, panel.deep + (panel.xTitle ? LINE : 0));
      });
      top += row[0].height + foot + 5;
    }
    return at(top);
  }

  // Headings, ticks and axes; the vertical axis' title is above all panels if they share it.
  function frame(svg, panel, shared) {
    const [left, top, right, bottom] = panel.box.map(at);
    const over = Math.min(left, panel.yLabels.length ? 2 : left);
    let y = top - panel.head + SIZE;
    const yTitle = () => {
      if (panel.yTitle) mark(svg, "text", { x: over, y }, cut(panel.yTitle, WIDTH - over));
      y += panel.yTitle ? LINE : 0;
    };
    if (shared) yTitle();
    if (panel.heading) mark(svg, "text", { x: left, y: shared ? top - 5 : y, "font-weight": "bold" }, panel.heading);
    if (panel.heading) y += LINE;
    if (panel.legend.length) {
      legend(svg, panel.legend, left, y - SIZE + 1);
      y += LINE * (panel.legend.at(-1).row + 1);
    }
    if (!shared) yTitle();
    const plain = panel.z !== null;
    const line = (d) => plain || mark(svg, "path", { d, stroke: INK, "stroke-width": 0.6, opacity: 0.2 });
    panel.xTicks.forEach((value, i) => {
      const x = place(panel, value, null)[0], text = panel.xLabels[i];
      if (!panel.x.names.length) line(`M${x} ${top}V${bottom}`);
      if (text === undefined) return;
      const half = wide(text) / 2, turned = `rotate(-35 ${x} ${bottom + 9})`;
      if (panel.slanted) mark(svg, "text", { x, y: bottom + 9, "text-anchor": "end", transform: turned }, text);
      else {
        const inside = at(Math.max(half, Math.min(x, WIDTH - half)));
        mark(svg, "text", { x: inside, y: bottom + 12, "text-anchor": "middle" }, text);
      }
    });
    panel.yTicks.forEach((value, i) => {
      const py = place(panel, null, value)[1], text = panel.yLabels[i];
      if (!panel.y.names.length) line(`M${left} ${py}H${right}`);
      const own = panel.bars ? { class: `p${panel.series[i].policy}` } : {};
      if (text) mark(svg, "text", { x: left - 5, y: at(py + 3.4), "text-anchor": "end", ...own }, text);
    });
    if (!plain) mark(svg, "path", { d: `M${left} ${top}V${bottom}H${right}`, fill: "none", stroke: INK, "stroke-width": 0.8 });
    const middle = at((left + right) / 2);
    if (panel.xTitle) {
      const half = wide(panel.xTitle) / 2, x = at(Math.max(half, Math.min(middle, WIDTH - half)));
      mark(svg, "text", { x, y: at(bottom + panel.deep + SIZE), "text-anchor": "middle" }, panel.xTitle);
    }
  }

  function colour(ramp, part) {
    const stop = Math.max(0, Math.min(1, part)) * (ramp.length - 1), k = Math.min(Math.floor(stop), ramp.length - 2);
    const channel = (i) => [ramp[k], ramp[k + 1]].map((hex) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16));
    return `rgb(${[0, 1, 2].map((i) => {
      const [low, high] = channel(i);
      return Math.round(low + (stop - k) * (high - low));
    }).join(" ")})`;
  }

  const box = (left, top, right, bottom) => `M${at(left)} ${at(top)}H${at(right)}V${at(bottom)}H${at(left)}z`;

  const draw = {
    steps(group, panel, series, style, { marked }) {
      const [, zero] = place(panel, null, panel.y.log ? panel.y.low : 0);
      const points = series.x.map((x, i) => place(panel, x, series.y[i]));
      if (!points.length) return;
      const fill = { fill: style.color, "fill-opacity": series.fill };
      if (series.base) {
        const columns = points.slice(0, -1).map(([x], i) => {
          const [, low] = place(panel, null, series.base[i]), [, high] = place(panel, null, series.base[i] + series.y[i]);
          return series.y[i] > 0 ? box(x, high, x + 0.9 * (points[i + 1][0] - x), low) : "";
        });
        mark(group, "path", { d: columns.join(""), ...fill });
        return;
      }
      const path = `M${points[0].join(" ")}${points.slice(1).map(([x, y]) => `H${x}V${y}`).join("")}`;
      if (series.fill) mark(group, "path", { d: `${path}V${zero}H${points[0][0]}z`, ...fill });
      stroke(group, path, series, style);
      if (!marked || series.policy === null) return;
      const [left, , right] = panel.box, apart = 0.15 * (right - left);
      let next = left + apart * ((series.policy * 0.37) % 1); // different places for each policy
      points.forEach(([x, y], i) => {
        const end = i + 1 < points.length ? points[i + 1][0] : x;
        for (; next <= end && next >= x; next += apart) dot(group, next, y, 4.5, style, series);
      });
    },

    points(group, panel, series, style) {
      const points = series.x.map((x, i) => (x === null || series.y[i] === null ? null : place(panel, x, series.y[i])));
      if (series.line) {
        const path = points.map((p, i) => (p ? `${i && points[i - 1] ? "L" : "M"}${p.join(" ")}` : "")).join("");
        stroke(group, path, series, style);
      }
      points.forEach((p, i) => {
        if (!p) return;
        whisker(group, panel, series, style.color, i, 0);
        dot(group, ...p, [series.size ?? 4.5].flat().at(series.size?.length ? i : 0), style, series);
      });
    },

    bars(group, panel, series, style) {
      const [value, row] = [series.x[0], series.y[0]], [x, y] = place(panel, value, row);
      const half = Math.abs(place(panel, null, row + 0.31)[1] - y), [left] = panel.box;
      if (value !== null && panel.x.log) dot(group, x, y, 8, style, series);
      else if (value !== null) {
        mark(group, "path", { d: box(left, y - half, x, y + half), fill: style.color, opacity: series.alpha });
      }
      const dots = series.dots.map((v) => place(panel, v, row + 0.2));
      const small = { r: 1.6, fill: "#fff", stroke: "#1f2328", "stroke-width": 0.5 };
      for (const [cx, cy] of dots) mark(group, "circle", { cx, cy, ...small });
      whisker(group, panel, series, INK, 0, 3.5);
      const ends = [x, ...dots.map(([cx]) => cx), series.x_high[0] === null ? x : place(panel, series.x_high[0], row)[0]];
      const italic = value === null ? { "font-style": "italic" } : {};
      mark(group, "text", { x: at((value === null ? left : Math.max(...ends)) + 6), y: at(y + 3.4), ...italic }, series.notes[0]);
    },

    cells(group, panel, series, style, { ramp }) {
      series.x.forEach((column, i) => {
        const [left, bottom] = place(panel, column - 0.5, series.y[i] - 0.5);
        const [right, top] = place(panel, column + 0.5, series.y[i] + 0.5);
        const part = series.z[i] === null ? null : share(panel.z, series.z[i]);
        if (part !== null) mark(group, "path", { d: box(left, top, right, bottom), fill: colour(ramp, part) });
        const fill = part === null ? INK : part < 0.6 ? "#fff" : "#000";
        const [x, y] = [at((left + right) / 2), at((top + bottom) / 2 + 3)];
        if (series.notes[i]) mark(group, "text", { x, y, "text-anchor": "middle", "font-size": 8, fill }, series.notes[i]);
      });
    },

    boxes(group, panel, series, style) {
      const half = series.tall / 2;
      const d = series.x.map((x, i) => {
        const [y, end] = [series.y[i], series.x_end[i]];
        return box(...place(panel, x, y - half), ...place(panel, end, y + half));
      });
      mark(group, "path", { d: d.join(""), fill: style.color, "fill-opacity": series.fill });
    },
  };

  function stroke(group, d, series, style) {
    const width = series.width ?? 1.5;
    if (!width) return;
    const line = mark(group, "path", { d, fill: "none", stroke: style.color, "stroke-width": width, "stroke-linejoin": "round" });
    const dashes = series.dash ?? style.dashes;
    if (dashes) line.setAttribute("stroke-dasharray", dashes.split(" ").map((length) => at(length * width)).join(" "));
  }

  function dot(group, x, y, size, style, series) {
    if (!size) return;
    const transform = `translate(${at(x)} ${at(y)}) scale(${size / 8})`, opacity = series.alpha ?? 1;
    const look = series.ring ? { fill: "none", stroke: style.color } : { fill: style.color };
    mark(group, "path", { d: style.marker, transform, opacity, ...look });
  }

  // Intervals of a number, with caps of some length.
  function whisker(group, panel, series, color, i, cap) {
    for (const axis of ["x", "y"]) {
      const [low, high] = [`${axis}_low`, `${axis}_high`].map((end) => series[end]?.[i] ?? null);
      if (low === null || high === null || low === high) continue;
      const ends = [low, high].map((v) => (axis === "x" ? place(panel, v, series.y[i]) : place(panel, series.x[i], v)));
      const caps = cap ? ends.map(([x, y]) => `M${x} ${at(y - cap)}v${2 * cap}`).join("") : "";
      const d = `M${ends.map((end) => end.join(" ")).join("L")}${caps}`;
      mark(group, "path", { d, fill: "none", stroke: color, "stroke-width": cap ? 1.3 : 0.9 });
    }
  }

  function fill(svg, panel, id, data) {
    const [left, top, right, bottom] = panel.box.map(at);
    const area = { x: left, y: top, width: at(right - left), height: at(bottom - top) };
    mark(mark(svg, "clipPath", { id }), "rect", area);
    mark(svg, "rect", { ...area, fill: "none", class: "panel" });
    const stretched = { preserveAspectRatio: "none", "image-rendering": "pixelated" };
    const clipped = { "clip-path": `url(#${id})` };
    if (panel.image) {
      const { x } = panel, [low, high] = x.whole ?? [x.low, x.high], unit = (right - left) / (x.high - x.low);
      const span = { x: at(left + (low - x.low) * unit), width: at((high - low) * unit) };
      mark(svg, "image", { href: panel.image, ...area, ...span, ...stretched, ...clipped });
    }
    if (panel.z && !panel.series.length) { // a scale
      for (let k = 0; k < 64; k += 1) {
        mark(svg, "path", { d: box(left + ((right - left) * k) / 64, top, right, bottom), fill: colour(data.ramp, k / 63) });
      }
    }
    for (const series of panel.series) {
      const none = series.policy === null, own = none ? { ...data.styles[0], dashes: "" } : data.styles[series.policy];
      const group = mark(svg, "g", series.kind === "bars" ? {} : clipped);
      if (!none) group.setAttribute("class", series.also ? `j${[series.policy, ...series.also].join("-")}` : `p${series.policy}`);
      draw[series.kind](group, panel, series, { ...own, color: series.color ?? own.color }, data);
    }
    for (const [axis, value, text] of panel.rules) {
      const [x, y] = axis === "x" ? place(panel, value, null) : place(panel, null, value);
      const d = axis === "x" ? `M${x} ${top}V${bottom}` : `M${left} ${y}H${right}`;
      mark(svg, "path", { d, stroke: INK, "stroke-width": 1, "stroke-dasharray": "4 2", ...clipped });
      const where = axis === "x" ? { x: at(x + 3), y: at(top + SIZE) } : { x: right, y: at(y - 4), "text-anchor": "end" };
      if (text) mark(svg, "text", where, text);
    }
  }

  // Draw a chart into an element; its panels get their boxes: left, top, right, bottom. An axis with a part to start with
  // shows that part.
  function show(parent, name, data) {
    const chart = data.charts[name];
    const svg = mark(parent, "svg", { role: "img", "aria-label": chart.label, "font-family": "sans-serif",
      "font-size": SIZE, fill: INK });
    chart.panels.forEach(({ x }) => { if (x.start) [x.whole, [x.low, x.high]] = [[x.low, x.high], x.start]; });
    return redraw(svg, name, data);
  }

  // Draw a chart again after its axes have changed.
  function redraw(svg, name, data) {
    const chart = data.charts[name];
    while (svg.lastChild) svg.lastChild.remove();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${arrange(chart)}`);
    chart.panels.forEach((panel, k) => {
      frame(svg, panel, chart.panels.length > 1 && !panel.legend.length);
      fill(svg, panel, `${name}-${k}`, data);
    });
    return svg;
  }

  // Save a picture as a file of its own, with a legend of the policies that are shown.
  function save(svg, name, data, isShown) {
    const [copy, shown] = [svg.cloneNode(true), new Set()];
    copy.querySelectorAll(".hover").forEach((element) => element.remove());
    data.policies.forEach((_, i) => copy.querySelectorAll(`.p${i}`).forEach((e) => (isShown(i) ? shown.add(i) : e.remove())));
    const joint = new Map();
    copy.querySelectorAll("[class^=j]").forEach((e) => {
      const own = e.getAttribute("class").slice(1).split("-").map(Number);
      if (!own.some(isShown)) e.remove();
      else joint.set(shown.add(own[0]) && own[0], own.map((i) => data.policies[i]).join(", "));
    });
    const { panels } = data.charts[name], kinds = panels.flatMap((panel) => panel.series);
    const marked = data.marked || kinds.some((series) => series.kind === "points" && series.size !== 0);
    const lines = panels.some((panel) => panel.bars) ? [] : [...shown].sort((a, b) => a - b);
    const styles = lines.map((i) => ({ name: joint.get(i) ?? data.policies[i], line: true, ...data.styles[i] }));
    if (!marked) styles.forEach((style) => { style.marker = ""; });
    const entries = flow(styles, WIDTH), room = entries.length ? LINE * (entries.at(-1).row + 1) + 6 : 0;
    legend(copy, entries, 2, 2 - room);
    const { width, height } = svg.viewBox.baseVal;
    for (const [key, value] of Object.entries({ viewBox: `0 ${-room} ${width} ${height + room}`, width: `${width}pt`,
      height: `${height + room}pt`, color: "#1f2328" })) copy.setAttribute(key, value);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    link.download = `${name}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  return { across, mark, place, redraw, save, share, show };
})();
