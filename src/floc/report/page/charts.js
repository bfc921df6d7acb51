// The charts: t-SNE of tokens, one plot per panel, and the scatter of methods.

byId("tsne").hidden = !tsne;
byId("tsne-count").textContent = `${formatCount(tsne?.indices.length ?? 0)} of ${formatCount(TOKENS)}`;

const plots = !tsne ? [] : [0, 1].map((side) => {
  const points = Array.from(tsne.indices, (token, i) =>
    Object.assign(svg("circle", { cx: tsne.xy[2 * i], cy: -tsne.xy[2 * i + 1] }), { token }),
  );
  const chart = svg("svg", { viewBox: "-1.05 -1.05 2.1 2.1", role: "img" }, ...points);
  const title = element("h3");
  byId("tsne").querySelector(".plots").append(element("figure", {}, title, chart));
  chart.addEventListener("pointermove", (event) => {
    const { token } = event.target;
    const selection = currentSelection(side);
    if (token === undefined || !selection) return hideTip();
    showTip(event, `${selection.has(token) ? "kept" : "dropped"}: ${describeToken(token)}`, closeUp(token, 96));
  });
  chart.addEventListener("pointerleave", hideTip);
  chart.addEventListener("click", ({ target }) => target.token !== undefined && goTo(target.token));
  return { side, chart, points, title };
});

function drawPlot({ side, chart, points, title }) {
  const selection = currentSelection(side);
  if (!selection || !isStale(`plot-${side}`, state.methods[side], selection.step, state.token)) return;
  const isRelated = relatedTo(selection);
  const classes = { kept: selection.has, related: isRelated, selected: (token) => token === state.token };
  for (const [name, test] of Object.entries(classes)) {
    for (const point of points) point.classList.toggle(name, test(point.token));
  }
  const kept = points.filter((point) => selection.has(point.token));
  chart.append(...kept); // on top of the dropped ones
  const counts = `${formatCount(kept.length)} of ${formatCount(points.length)}`;
  title.textContent = `${letter(side)}, ${methodName(side)}: ${counts} sampled tokens kept (green)`;
  chart.ariaLabel = `t-SNE of tokens. ${title.textContent}.`;
}

// ---- the scatter: one point per method

function drawScatter() {
  const isNarrow = window.innerWidth < 600;
  if (!isStale("scatter", state.step, isNarrow)) return;
  const points = data.methods.flatMap(({ name, steps, scatter }, method) => {
    const step = steps[nearestStep(method)];
    return scatter[step] ? [{ name, step, x: scatter[step][0], y: scatter[step][1] }] : [];
  });
  byId("scatter").hidden = data.methods.every(({ scatter }) => Object.keys(scatter).length === 0);
  const others = points.filter(({ step }) => step !== state.step);
  const names = others.map(({ name, step }) => `${name} ${data.steps[step].label}`).join(", ");
  byId("scatter-text").textContent =
    `Averaged sum coverage (representativeness, to the right) and averaged distance (diversity, upwards) at ` +
    `${data.steps[state.step].label}, z-scored over the methods: 0 is the mean, 1 is a standard deviation.` +
    (names && ` Hollow: not run at this ratio, shown at the nearest ratio (${names}).`);
  const [width, height, pad] = isNarrow ? [330, 330, 40] : [720, 420, 48];
  const reach = 1.15 * Math.max(1, ...points.flatMap(({ x, y }) => [Math.abs(x), Math.abs(y)]));
  const px = (x) => pad + ((x + reach) / (2 * reach)) * (width - pad - 12);
  const py = (y) => 12 + ((reach - y) / (2 * reach)) * (height - pad - 12);
  const axisText = (text, attributes) => svg("text", { class: "axis", "text-anchor": "middle", text, ...attributes });
  const label = points.map(({ name, x, y }) => `${name}: ${x.toFixed(2)}, ${y.toFixed(2)}`).join("; ");
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  chart.append(
    svg("rect", { class: "frame", x: pad, y: 12, width: width - pad - 12, height: height - pad - 12, rx: 6 }),
    svg("path", { class: "zero", d: `M${px(0)} 12V${height - pad}M${pad} ${py(0)}H${width - 12}` }),
    axisText("averaged sum coverage (z) →", { x: (width + pad) / 2, y: height - 6 }),
    axisText("averaged distance (z) →", { transform: `translate(13 ${(height - pad) / 2}) rotate(-90)` }),
  );
  for (let tick = -Math.floor(reach); tick <= reach; tick++) {
    chart.append(axisText(tick, { x: px(tick), y: height - pad + 16 }), axisText(tick, { x: pad - 12, y: py(tick) + 4 }));
  }
  const occupied = points.map(({ x, y }) => ({ left: px(x) - 7, top: py(y) - 7, right: px(x) + 7, bottom: py(y) + 7 }));
  for (const { name, step, x, y } of points) {
    const point = svg("circle", { cx: px(x), cy: py(y), r: 5, class: step === state.step ? "" : "nearest" });
    point.append(svg("title", { text: name }));
    const label = placeLabel(name, px(x), py(y), occupied, width);
    chart.append(point, ...(label ? [label] : []));
  }
  if (chart.querySelectorAll("circle").length > chart.querySelectorAll(".name").length) {
    byId("scatter-text").textContent += " Some names do not fit: hold the pointer over a point to see its method.";
  }
  byId("scatter").querySelector(".plot").replaceChildren(chart);
}

/** Return a label beside its point, at the first position where it overlaps nothing; null if there is none. */
function placeLabel(text, x, y, occupied, width) {
  const length = text.length * 7.2; // approximate width in a 13 px system font
  const positions = [-12, 4, 20].flatMap((dy) => [[10, dy, "start"], [-10, dy, "end"], [0, dy, "middle"]]);
  positions.sort(([, a], [, b]) => Math.abs(a - 4) - Math.abs(b - 4)); // beside the point first
  const boxOf = ([dx, dy, anchor]) => {
    const left = x + dx - { start: 0, middle: length / 2, end: length }[anchor];
    return { left, right: left + length, top: y + dy - 11, bottom: y + dy + 3 };
  };
  const overlap = (a, b) => a.right >= b.left && a.left <= b.right && a.bottom >= b.top && a.top <= b.bottom;
  const isFree = (box) => box.left > 0 && box.right < width && !occupied.some((other) => overlap(box, other));
  const position = positions.find((position) => isFree(boxOf(position)));
  if (!position) return null;
  const [dx, dy, anchor] = position;
  occupied.push(boxOf(position));
  return svg("text", { class: "name", x: x + dx, y: y + dy, "text-anchor": anchor, text });
}
