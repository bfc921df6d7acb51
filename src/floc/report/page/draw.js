// Shared drawing code: the redraw loop, DOM helpers, text formatting, pictures of frames, and the tooltip.

let scheduled = 0;

/** Change the state and redraw. Every interaction goes through this function. */
function change(changes) {
  Object.assign(state, changes);
  state.frame = Math.min(Math.max(state.frame, 0), T - 1);
  state.step = Math.min(Math.max(state.step, 0), data.steps.length - 1);
  draw();
}

function draw() {
  scheduled ||= requestAnimationFrame(() => {
    scheduled = 0;
    drawControls();
    panels.forEach(drawPanel);
    drawTimeline();
    plots.forEach(drawPlot);
    drawScatter();
    drawTable();
  });
}

const drawn = new Map(); // part of the page -> the values it was last drawn from

/** Return whether a part of the page must be drawn again because one of the values changed. */
function isStale(part, ...values) {
  const key = JSON.stringify(values);
  if (drawn.get(part) === key) return false;
  drawn.set(part, key);
  return true;
}

// ---- DOM helpers

function element(tag, { text = "", ...properties } = {}, ...children) {
  const node = Object.assign(document.createElement(tag), { textContent: text, ...properties });
  node.append(...children);
  return node;
}

function svg(tag, { text = "", ...attributes } = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  node.append(...children);
  return node;
}

const button = (text, onclick, properties, ...children) =>
  element("button", { type: "button", text, onclick, ...properties }, ...children);

// ---- text

const formatCount = (count) => count.toLocaleString("en-US");
const countOf = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
const letter = (side) => "AB"[side];
const methodName = (side) => data.methods[state.methods[side]].name;
const describeStep = (step) => `${data.steps[step].label} · ${countOf(data.steps[step].budget, "token")}`;
const describeCell = (token) => `row ${Math.floor((token % CELLS) / W)}, column ${token % W}`;
const describeToken = (token) => `${describeCell(token)} at ${formatTime(frameOf(token))}`;

function formatTime(frame) {
  const tenths = Math.round(data.times_s[frame] * 10);
  const [h, m, s] = [Math.floor(tenths / 36000), Math.floor(tenths / 600) % 60, (tenths % 600) / 10];
  const seconds = (s < 10 ? "0" : "") + (tenths % 10 ? s.toFixed(1) : s);
  return h ? `${h}:${String(m).padStart(2, "0")}:${seconds}` : `${m}:${seconds}`;
}

// ---- pictures of frames, in pixels of the stored image

const IMAGE = data.image;
const CELL = { width: IMAGE.width / W, height: IMAGE.height / H };
const LINE = Math.min(CELL.width, CELL.height) / 14;

const imageUrl = (frame) => `data:${IMAGE.mime};base64,${byId(`frame-${frame}`).textContent}`;

/** Return a path around cells of a frame; CSS styles it by class. */
function outline(cells, className, inset = LINE / 2) {
  const [w, h] = [CELL.width - 2 * inset, CELL.height - 2 * inset];
  const corner = (cell) => `${(cell % W) * CELL.width + inset} ${Math.floor(cell / W) * CELL.height + inset}`;
  const d = cells.map((cell) => `M${corner(cell)}h${w}v${h}h${-w}z`).join("");
  return svg("path", { class: className, d, "stroke-width": LINE });
}

/** Return a picture of a token's frame with the token's cell boxed; CSS styles the box by class. */
function thumbnail(token, className) {
  const { width, height } = IMAGE;
  const image = svg("image", { href: imageUrl(frameOf(token)), width, height });
  const box = outline([token % CELLS], className);
  const label = describeToken(token);
  return svg("svg", { class: "view", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, image, box);
}

/** Return a patch with half a cell around it, so that its content is recognisable. */
function closeUp(token, size) {
  const { width, height } = CELL;
  const [x, y] = [((token % W) - 0.5) * width, (Math.floor((token % CELLS) / W) - 0.5) * height];
  const view = thumbnail(token, "center");
  const scale = size / (2 * Math.max(width, height));
  view.setAttribute("viewBox", `${x} ${y} ${2 * width} ${2 * height}`);
  Object.assign(view.style, { width: `${2 * width * scale}px`, height: `${2 * height * scale}px` });
  return view;
}

// ---- the pointer and its tooltip

/** Return the cell of a grid over a node that the pointer is in. */
function cellAt({ clientX, clientY }, node, columns, rows) {
  const { left, top, width, height } = node.getBoundingClientRect();
  const place = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return place((clientY - top) / height, rows) * columns + place((clientX - left) / width, columns);
}

function showTip({ clientX, clientY }, text, ...content) {
  const tip = byId("tip");
  tip.hidden = false;
  tip.replaceChildren(...content, text);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${clientY + 18 + height > innerHeight ? clientY - height - 12 : clientY + 18}px`;
}

const hideTip = () => (byId("tip").hidden = true);
