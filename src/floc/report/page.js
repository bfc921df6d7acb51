// The report page: one state, one way to change it, and drawings that follow.
// A token is its flat index t*H*W + y*W + x; a place is a position in a method's own list of stops.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const [T, H, W] = data.grid;
const CELLS = H * W;
const TOKENS = T * CELLS;
const IMAGES_HELD = 96; // decoded images: at 256 x 144 about 14 MB
const METHODS_HELD = 4; // unpacked methods: 4 bytes a token and stop each
const MS_PER_FRAME = matchMedia("(prefers-reduced-motion: reduce)").matches ? 700 : 150;
const GREEN = "#2fe27c"; // on pictures, whatever the theme
const AMBER = "#ffb02e";

const state = {
  frame: data.opens_at[0],
  stop: data.opens_at[1],
  methods: [0, Math.min(1, data.methods.length - 1)], // of panel A and panel B
  active: 0, // the panel that digits and "keeps something" mean
  token: null, // the patch that is asked about
  cursor: Math.floor(H / 2) * W + Math.floor(W / 2), // the cell under the keyboard
  playing: false,
};

if (typeof DecompressionStream === "undefined") trouble("this browser is too old, any from 2023 or later will do");

// ---- unpacking: see pack.py for what the arrays mean

async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// unpacked before anything is built: from here on the script runs through, and no drawing meets a half-built page
const tsne = data.tsne && {
  indices: new Uint32Array((await inflate(data.tsne.indices)).buffer),
  xy: new Float32Array((await inflate(data.tsne.xy)).buffer),
};

const bit = (bits, row, token) => (bits[row * Math.ceil(TOKENS / 8) + (token >> 3)] >> (token & 7)) & 1;

async function unpackMethod(method) {
  const packed = JSON.parse(byId(`method-${method}`).textContent);
  const [depth, bits, wrong, ...planes] = await Promise.all(
    [packed.depth, packed.bits, packed.wrong, ...packed.places].map((each) => each === undefined ? null : inflate(each)),
  );
  const isKept = depth ? (place, token) => depth[token] > place : (place, token) => bit(bits, place, token) === 1;
  const answers = [];
  let at = 0;
  const nextPlace = () => {
    const place = planes[0][at] + planes[1][at] * 256 + planes[2][at] * 65536 + planes[3][at] * 16777216;
    at += 1;
    return place;
  };
  for (let s = 0; s < data.methods[method].stops_run.length; s++) {
    const counts = new Uint32Array(T);
    const list = [];
    for (let token = 0; token < TOKENS; token++) {
      if (isKept(s, token)) {
        list.push(token);
        counts[Math.floor(token / CELLS)] += 1;
      }
    }
    const kept = Uint32Array.from(list);
    const represents = new Uint32Array(TOKENS);
    if (s === 0) {
      for (let token = 0; token < TOKENS; token++) {
        const guess = token < CELLS ? token : represents[token - CELLS];
        represents[token] = bit(wrong, s, token) ? kept[nextPlace()] : guess;
      }
    } else {
      const before = answers[s - 1];
      for (const token of before.kept) represents[token] = bit(wrong, s, token) ? kept[nextPlace()] : token;
      for (let token = 0; token < TOKENS; token++) {
        if (isKept(s - 1, token)) continue;
        represents[token] = bit(wrong, s, token) ? kept[nextPlace()] : represents[before.represents[token]];
      }
    }
    answers.push({ kept, counts, represents, has: (token) => isKept(s, token) });
  }
  return answers;
}

const unpacked = new Map(); // method -> its answers, or null while they are unpacked; the longest unused first

function answersOf(method) {
  if (unpacked.has(method)) {
    const answers = unpacked.get(method);
    unpacked.delete(method);
    unpacked.set(method, answers);
    return answers;
  }
  unpacked.set(method, null);
  unpackMethod(method).then((answers) => {
    unpacked.set(method, answers);
    for (const each of unpacked.keys()) {
      if (unpacked.size <= METHODS_HELD) break;
      if (!state.methods.includes(each)) unpacked.delete(each);
    }
    draw();
  }, trouble);
  return null;
}

/** The place in a method's list of the stop it has an answer for that is nearest to the chosen one. */
function nearestPlace(method) {
  const away = (stop) => Math.abs(Math.log(data.stops[stop].budget / data.stops[state.stop].budget));
  const run = data.methods[method].stops_run;
  const exact = run.indexOf(state.stop);
  if (exact >= 0) return exact;
  return run.reduce((best, stop, place) => (away(stop) < away(run[best]) ? place : best), 0);
}

/** What panel `side` shows: its method, the stop it really has, and the answer; null while that is unpacked. */
function shown(side) {
  const method = state.methods[side];
  const answers = answersOf(method);
  const place = nearestPlace(method);
  return answers && { method, stop: data.methods[method].stops_run[place], ...answers[place] };
}

// ---- images, decoded when they are looked at

const images = new Map(); // frame -> decoded image, or a promise of it; the longest unused first

function imageOf(frame) {
  const held = images.get(frame);
  if (held !== undefined) {
    images.delete(frame);
    images.set(frame, held);
    return held;
  }
  const image = new Image();
  image.src = `data:${data.image.mime};base64,${byId(`frame-${frame}`).textContent}`;
  const loading = image.decode().then(
    () => {
      if (images.get(frame) === loading) images.set(frame, image);
      return image;
    },
    () => {
      trouble(`the image of frame ${frame + 1} cannot be decoded`);
      return null;
    },
  );
  images.set(frame, loading);
  for (const oldest of images.keys()) {
    if (images.size <= IMAGES_HELD) break;
    images.delete(oldest);
  }
  return loading;
}

const wanted = new WeakMap(); // canvas -> the last painting asked of it, so that a late image does not overpaint it

/** Call `paint(context, width, height, image)` on a canvas as soon as the image of `frame` is there. */
function paintWithImage(canvas, frame, width, height, paint) {
  const image = imageOf(frame);
  wanted.set(canvas, paint);
  const onto = (ready) => {
    if (ready && wanted.get(canvas) === paint) paint(fitted(canvas, width, height), width, height, ready);
  };
  if (image instanceof Promise) image.then(onto);
  else onto(image);
}

/** A cleared context in CSS pixels, crisp on any screen. */
function fitted(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// ---- words

const whole = (count) => count.toLocaleString("en-US");
const many = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
const frameOf = (token) => Math.floor(token / CELLS);

function clock(frame) {
  const tenths = Math.round(data.times_s[frame] * 10);
  const [h, m, s] = [Math.floor(tenths / 36000), Math.floor(tenths / 600) % 60, (tenths % 600) / 10];
  const seconds = (s < 10 ? "0" : "") + (tenths % 10 ? s.toFixed(1) : s);
  return h ? `${h}:${String(m).padStart(2, "0")}:${seconds}` : `${m}:${seconds}`;
}

function cellOf(token) {
  const cell = token % CELLS;
  return `row ${Math.floor(cell / W) + 1}, column ${(cell % W) + 1}`;
}

const where = (token) => `${cellOf(token)} at ${clock(frameOf(token))}`;
const stopSays = (stop) => `${data.stops[stop].label} · ${many(data.stops[stop].budget, "token")}`;
const letter = (side) => "AB"[side];
const nameOf = (side) => data.methods[state.methods[side]].name;

function element(tag, { text, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function trouble(problem) {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `This report cannot be shown in full: ${problem.message ?? problem}`;
}

// ---- change: everything that moves goes through here

let drawing = 0;

function change(what) {
  Object.assign(state, what);
  state.frame = Math.min(Math.max(state.frame, 0), T - 1);
  state.stop = Math.min(Math.max(state.stop, 0), data.stops.length - 1);
  draw();
}

function draw() {
  if (!drawing) {
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      drawControls();
      panels.forEach(drawPanel);
      drawTimeline();
      drawBusiest();
      plots.forEach(drawPlot);
      drawScatter();
      drawTable();
    });
  }
}

const drawn = new Map(); // part of the page -> what it was last built from

/** Whether a part of the page has to be built again; most of them do not depend on the frame. */
function isStale(part, ...from) {
  const key = JSON.stringify(from);
  if (drawn.get(part) === key) return false;
  drawn.set(part, key);
  return true;
}

// ---- header

byId("title").textContent = data.title;
byId("facts").append(
  ...data.facts.map(([label, value]) => element("div", {}, element("dt", { text: label }), element("dd", { text: value }))),
);
byId("command").textContent = data.command;
byId("notes").hidden = data.notes.length === 0;
byId("notes").querySelector("ul").append(...data.notes.map((note) => element("li", { text: note })));
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  draw();
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// ---- controls

const ratioSlider = byId("ratio");
const frameSlider = byId("frame");
ratioSlider.max = data.stops.length - 1;
frameSlider.max = T - 1;
// more tokens to the right, as "up" on a slider is more
ratioSlider.addEventListener("input", () => change({ stop: data.stops.length - 1 - ratioSlider.value }));
frameSlider.addEventListener("input", () => change({ frame: Number(frameSlider.value) }));

function drawControls() {
  ratioSlider.value = data.stops.length - 1 - state.stop;
  frameSlider.value = state.frame;
  byId("ratio-says").textContent = stopSays(state.stop);
  ratioSlider.setAttribute("aria-valuetext", stopSays(state.stop));
  const says = `${clock(state.frame)} · ${whole(state.frame + 1)} of ${whole(T)}`;
  byId("frame-says").textContent = says;
  frameSlider.setAttribute("aria-valuetext", says);
  byId("play").setAttribute("aria-pressed", state.playing);
  byId("play").setAttribute("aria-label", state.playing ? "Pause" : "Play");
}

const step = (by) => change({ frame: state.frame + by });

function stepToKept(direction) {
  const counts = shown(state.active)?.counts;
  if (!counts) return;
  for (let t = state.frame + direction; t >= 0 && t < T; t += direction) {
    if (counts[t] > 0) return change({ frame: t });
  }
}

let plays = 0; // how often play was pressed: what an earlier press set going stops at the next

function togglePlay() {
  change({ playing: !state.playing, frame: state.frame === T - 1 ? 0 : state.frame });
  plays++;
  if (state.playing) setTimeout(playOn, MS_PER_FRAME, plays);
}

async function playOn(press) {
  if (!state.playing || press !== plays) return;
  if (state.frame === T - 1) return change({ playing: false });
  const started = performance.now();
  await imageOf(state.frame + 1); // never ahead of what can be seen
  if (!state.playing || press !== plays) return;
  step(1);
  setTimeout(playOn, MS_PER_FRAME - (performance.now() - started), press);
}

const onClick = { "previous-kept": () => stepToKept(-1), previous: () => step(-1), play: togglePlay, next: () => step(1), "next-kept": () => stepToKept(1) };
for (const [id, action] of Object.entries(onClick)) byId(id).addEventListener("click", action);

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("select")) return;
  const isRange = target.matches('input[type="range"]'); // it has arrows of its own
  const inViewer = byId("viewer").contains(target); // elsewhere up and down scroll the page
  const picture = target.closest(".picture");
  const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (picture && event.shiftKey && key in arrows) moveCursor(...arrows[key]);
  else if (picture && (key === "Enter" || key === " ")) choose(state.frame * CELLS + state.cursor);
  else if (key in arrows && isRange) return;
  else if (key === "ArrowLeft") step(-1);
  else if (key === "ArrowRight") step(1);
  else if (key === "+" || key === "=" || (key === "ArrowUp" && inViewer)) change({ stop: state.stop - 1 });
  else if (key === "-" || (key === "ArrowDown" && inViewer)) change({ stop: state.stop + 1 });
  else if (key === ",") stepToKept(-1);
  else if (key === ".") stepToKept(1);
  else if (key === "p") togglePlay();
  else if (key === "Escape") change({ token: null });
  else if (/^[1-9]$/.test(key) && Number(key) <= data.methods.length) setMethod(state.active, Number(key) - 1);
  else return;
  event.preventDefault();
});

const setMethod = (side, method) => change({ methods: state.methods.with(side, method) });

// ---- the two panels

const panels = [0, 1].map((side) => {
  const root = byId("panel").content.firstElementChild.cloneNode(true);
  const find = (selector) => root.querySelector(selector);
  const panel = { side, root, picture: find(".picture"), select: find("select"), says: find(".says"), elsewhere: find(".elsewhere"), patch: find(".patch") };
  find(".badge").textContent = letter(side);
  root.setAttribute("aria-label", `Panel ${letter(side)}`);
  panel.select.setAttribute("aria-label", `Method in panel ${letter(side)}`);
  panel.select.append(...data.methods.map((method, value) => element("option", { text: method.name, value })));
  panel.select.addEventListener("change", () => setMethod(side, Number(panel.select.value)));
  for (const type of ["focusin", "pointerdown"]) {
    root.addEventListener(type, () => {
      if (state.active !== side) change({ active: side });
    });
  }
  for (const type of ["focus", "blur"]) panel.picture.addEventListener(type, draw); // the cursor comes and goes
  panel.picture.addEventListener("click", (event) => {
    const box = panel.picture.getBoundingClientRect();
    const x = Math.min(W - 1, Math.floor(((event.clientX - box.left) / box.width) * W));
    const y = Math.min(H - 1, Math.floor(((event.clientY - box.top) / box.height) * H));
    state.cursor = Math.max(0, y) * W + Math.max(0, x);
    choose(state.frame * CELLS + state.cursor);
  });
  byId("panel").parentElement.append(root);
  new ResizeObserver(draw).observe(panel.picture.parentElement);
  return panel;
});

const choose = (token) => change({ token: state.token === token ? null : token });
const goTo = (token) => change({ frame: frameOf(token), token, cursor: token % CELLS, playing: false });

function moveCursor(down, right) {
  const y = (Math.floor(state.cursor / W) + down + H) % H;
  const x = ((state.cursor % W) + right + W) % W;
  change({ cursor: y * W + x });
}

function drawPanel(panel) {
  const { side, root } = panel;
  const method = data.methods[state.methods[side]];
  panel.select.value = state.methods[side];
  root.classList.toggle("active", state.active === side);
  root.querySelector(".description").textContent = method.description;
  const answer = shown(side);
  root.ariaBusy = !answer;
  if (!answer) return;
  const count = answer.counts[state.frame];
  Object.assign(root.dataset, { method: method.name, stop: data.stops[answer.stop].label, frame: state.frame, keptHere: count, kept: answer.kept.length });
  panel.says.replaceChildren(element("b", { text: whole(count) }), ` of ${whole(CELLS)} patches kept in this frame, ${whole(answer.kept.length)} of ${whole(TOKENS)} in the film`);
  panel.elsewhere.hidden = answer.stop === state.stop;
  panel.elsewhere.textContent = `${method.name} was not run at ${data.stops[state.stop].label}; this is its answer at ${data.stops[answer.stop].label}.`;
  drawPicture(panel, answer);
  drawPatch(panel, answer);
}

function drawPicture({ picture, side }, answer) {
  const width = picture.clientWidth;
  const height = (width * data.image.height) / data.image.width;
  const first = state.frame * CELLS;
  const related = relatedTo(answer);
  const hasCursor = document.activeElement === picture && picture.matches(":focus-visible");
  const under = first + state.cursor;
  picture.style.aspectRatio = `${data.image.width} / ${data.image.height}`;
  picture.setAttribute(
    "aria-label",
    `${nameOf(side)}, frame at ${clock(state.frame)}: ${answer.counts[state.frame]} of ${CELLS} patches kept. Shift and arrows choose a patch, Enter opens it.`,
  );
  if (hasCursor) byId("cursor-says").textContent = `${cellOf(under)}: ${answer.has(under) ? "kept" : "dropped"}`;
  if (!width) return;
  paintWithImage(picture, state.frame, width, height, (context, w, h, image) => {
    context.drawImage(image, 0, 0, w, h);
    const isAskedAbout = (cell) => first + cell === state.token || related(first + cell);
    paintCells(context, w, h, (cell) => answer.has(first + cell), isAskedAbout);
    for (let cell = 0; cell < CELLS; cell++) {
      if (related(first + cell)) paintBox(context, w, h, cell, AMBER, 2, "rgb(255 176 46 / .2)");
    }
    if (state.token !== null && frameOf(state.token) === state.frame) paintBox(context, w, h, state.token % CELLS, AMBER, 4);
    if (hasCursor) paintBox(context, w, h, state.cursor, "#fff", 2, null, [4, 3]);
  });
  for (const ahead of [1, 2, -1]) {
    if (data.times_s[state.frame + ahead] !== undefined) imageOf(state.frame + ahead);
  }
}

/** Which tokens belong to the chosen one: those that it stands for or, where it was dropped, the one that stands for it. */
function relatedTo(answer) {
  const { token } = state;
  if (token === null) return () => false;
  if (!answer.has(token)) return (other) => other === answer.represents[token];
  return (other) => other !== token && answer.represents[other] === token;
}

/** Left, top, width and height of a cell, on whole pixels: dimmed neighbours must not leave a seam. */
function cellBox(width, height, cell) {
  const [y, x] = [Math.floor(cell / W), cell % W];
  const [left, top] = [Math.round((x * width) / W), Math.round((y * height) / H)];
  return [left, top, Math.round(((x + 1) * width) / W) - left, Math.round(((y + 1) * height) / H) - top];
}

function paintCells(context, width, height, isKept, isBright = () => false) {
  const line = Math.max(1, Math.min(2.5, width / W / 14));
  context.fillStyle = "rgb(6 10 8 / .62)";
  context.beginPath();
  for (let cell = 0; cell < CELLS; cell++) if (!isKept(cell) && !isBright(cell)) context.rect(...cellBox(width, height, cell));
  context.fill();
  for (let cell = 0; cell < CELLS; cell++) if (isKept(cell)) paintBox(context, width, height, cell, GREEN, line);
}

function paintBox(context, width, height, cell, stroke, line, fill = null, dash = []) {
  const [x, y, w, h] = cellBox(width, height, cell);
  if (fill) {
    context.fillStyle = fill;
    context.fillRect(x, y, w, h);
  }
  context.setLineDash(dash);
  context.strokeStyle = stroke;
  context.lineWidth = line;
  context.strokeRect(x + line / 2 + 0.5, y + line / 2 + 0.5, Math.max(1, w - line - 1), Math.max(1, h - line - 1));
  context.setLineDash([]);
}

// ---- one patch: who stands for it, or whom it stands for

function drawPatch({ side, patch, root }, answer) {
  const { token } = state;
  if (!isStale(`patch-${side}`, token, state.methods[side], answer.stop, token === null ? 0 : state.frame, root.clientWidth)) return;
  if (token === null) {
    patch.replaceChildren();
    for (const name of ["token", "representative", "standsFor"]) delete patch.dataset[name];
    return;
  }
  const isKept = answer.has(token);
  patch.dataset.token = token;
  patch.dataset.representative = answer.represents[token];
  const close = element("button", { type: "button", text: "×", ariaLabel: "Close", onclick: () => change({ token: null }) });
  const title = element("h3", {}, `${isKept ? "Kept" : "Dropped"}: ${where(token)}`, close);
  if (isKept) patch.replaceChildren(title, ...keptPatch(patch, answer, token));
  else patch.replaceChildren(title, ...droppedPatch(patch, answer, token));
}

function droppedPatch(patch, answer, token) {
  const by = answer.represents[token];
  delete patch.dataset.standsFor;
  const apart = data.times_s[frameOf(by)] - data.times_s[frameOf(token)];
  const lag = apart === 0 ? "in the same frame" : `${Math.abs(apart).toFixed(1)} s ${apart < 0 ? "earlier" : "later"}`;
  return [
    element("p", { text: `It is represented by ${where(by)}, ${lag}.` }),
    element(
      "div",
      { className: "pair" },
      figure(closeUp(token, 112), "this patch, dropped"),
      element("span", { className: "arrow", text: "→", ariaHidden: true }),
      figure(closeUp(by, 112), "its representative, kept"),
      figure(thumbnail(frameOf(by), 224, (cell) => cell === by % CELLS, false), `frame ${whole(frameOf(by) + 1)}, ${clock(frameOf(by))}`, "wide"),
    ),
    element("button", { type: "button", className: "go", text: "Go there", onclick: () => goTo(by) }),
  ];
}

function keptPatch(patch, answer, token) {
  const others = [];
  answer.represents.forEach((by, other) => {
    if (by === token && other !== token) others.push(other);
  });
  patch.dataset.standsFor = others.length;
  const here = others.filter((other) => frameOf(other) === state.frame).length;
  const frames = new Set(others.map(frameOf)).size;
  const says = others.length
    ? `It stands for ${many(others.length, "other patch")} in ${many(frames, "frame")}, ${whole(here)} of them in the frame shown (amber).`
    : "It stands for no other patch.";
  const shownOf = evenly(others, 12);
  const gallery = shownOf.map((other) =>
    element(
      "button",
      { type: "button", className: "thumb", ariaLabel: `Go to ${where(other)}`, title: where(other), onclick: () => goTo(other) },
      closeUp(other, 72),
      element("span", { text: clock(frameOf(other)) }),
    ),
  );
  return [
    element("p", { text: says }),
    element(
      "div",
      { className: "pair" },
      figure(closeUp(token, 112), "this patch, kept"),
      figure(thumbnail(frameOf(token), 224, (cell) => cell === token % CELLS, false), `frame ${whole(frameOf(token) + 1)}, ${clock(frameOf(token))}`, "wide"),
    ),
    ...(frameOf(token) === state.frame ? [] : [element("button", { type: "button", className: "go", text: "Go there", onclick: () => goTo(token) })]),
    ...(gallery.length ? [element("h3", { text: others.length > 12 ? `12 of the ${whole(others.length)} it stands for, evenly spaced` : "Those it stands for" }), element("div", { className: "gallery" }, ...gallery)] : []),
  ];
}

const evenly = (list, most) => list.length <= most ? list : Array.from({ length: most }, (_, i) => list[Math.floor(((i + 0.5) * list.length) / most)]);
const figure = (canvas, caption, className = "") => element("figure", { className }, canvas, element("figcaption", { text: caption }));

/** A patch with half a cell around it, so that one can tell what it is. */
function closeUp(token, size) {
  const canvas = element("canvas", { role: "img", ariaLabel: where(token) });
  const cell = token % CELLS;
  const [w, h] = [data.image.width / W, data.image.height / H];
  const scale = size / (2 * Math.max(w, h));
  const [left, top] = [((cell % W) - 0.5) * w, (Math.floor(cell / W) - 0.5) * h];
  canvas.style.width = `${2 * w * scale}px`;
  canvas.style.aspectRatio = `${w} / ${h}`;
  paintWithImage(canvas, frameOf(token), 2 * w * scale, 2 * h * scale, (context, width, height, image) => {
    context.imageSmoothingQuality = "high";
    context.drawImage(image, -left * scale, -top * scale, data.image.width * scale, data.image.height * scale);
    context.strokeStyle = "#fff";
    context.lineWidth = 1.5;
    context.strokeRect(width / 4, height / 4, width / 2, height / 2);
  });
  return canvas;
}

/** A small frame with some cells boxed; the others are dimmed, or left as they are. */
function thumbnail(of, width, isBoxed, dimmed) {
  const canvas = element("canvas", { role: "img", ariaLabel: `frame at ${clock(of)}` });
  canvas.style.width = "100%";
  canvas.style.aspectRatio = `${data.image.width} / ${data.image.height}`;
  paintWithImage(canvas, of, width, (width * data.image.height) / data.image.width, (context, w, h, image) => {
    context.drawImage(image, 0, 0, w, h);
    if (dimmed) paintCells(context, w, h, isBoxed);
    else for (let cell = 0; cell < CELLS; cell++) if (isBoxed(cell)) paintBox(context, w, h, cell, GREEN, 2.5);
  });
  return canvas;
}

// ---- the timeline: A above the line, B below it, on one scale

const timeline = byId("timeline");
const MARGIN = { left: 34, right: 10, top: 8, bottom: 20 };
new ResizeObserver(draw).observe(timeline);

// the frames of each second, from `first` up to `end`; where frames are further apart, each has its own
const seconds = [];
data.times_s.forEach((time, t) => {
  const second = Math.floor(time - data.times_s[0] + 1e-6);
  if (seconds.at(-1)?.second === second) seconds.at(-1).end = t + 1;
  else seconds.push({ second, first: t, end: t + 1 });
});
const secondAt = (t) => seconds.find(({ end }) => t < end);
const keptIn = (counts, { first, end }) => counts.slice(first, end).reduce((a, b) => a + b, 0);

function drawTimeline() {
  const sides = [shown(0), shown(1)];
  const [width, height] = [timeline.clientWidth, timeline.clientHeight];
  if (!sides[0] || !sides[1] || !width) return;
  const heights = sides.map(({ counts }) => seconds.map((each) => keptIn(counts, each)));
  const most = heights.flat().reduce((a, b) => Math.max(a, b), 1);
  const says = `Patches kept in each second: A, ${nameOf(0)}, upwards; B, ${nameOf(1)}, downwards; at most ${most}. Click to go there.`;
  byId("timeline-lead").textContent = says;
  timeline.setAttribute("aria-label", says);
  const context = fitted(timeline, width, height);
  const inner = width - MARGIN.left - MARGIN.right;
  const middle = (height - MARGIN.top - MARGIN.bottom) / 2 + MARGIN.top;
  const half = middle - MARGIN.top - 2;
  const bar = inner / T;
  const gap = inner / seconds.length > 4 ? 1 : 0;
  const x = (t) => MARGIN.left + t * bar;
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.font = font;
  context.fillStyle = colour("line");
  for (const y of [middle - half, middle + half]) context.fillRect(MARGIN.left, y, inner, 1);
  context.fillStyle = colour("accent");
  heights.forEach((talls, side) => {
    // bars narrower than a pixel overlap, and the tallest shows
    seconds.forEach(({ first, end }, i) => {
      const tall = (talls[i] / most) * (half - 1);
      if (tall) context.fillRect(x(first), side ? middle + 1 : middle - tall, Math.max(1, (end - first) * bar - gap), tall);
    });
  });
  context.fillStyle = colour("muted");
  context.fillRect(MARGIN.left, middle, inner, 1);
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const y of [middle - half, middle + half]) context.fillText(most, MARGIN.left - 6, y);
  context.font = `600 ${font}`;
  context.fillText("A", MARGIN.left - 6, middle - half / 2);
  context.fillText("B", MARGIN.left - 6, middle + half / 2);
  context.font = font;
  context.textBaseline = "bottom";
  const ticks = Math.max(2, Math.min(T, Math.floor(inner / 110)));
  for (let i = 0; i < ticks; i++) {
    const t = ticks === 1 ? 0 : Math.round((i * (T - 1)) / (ticks - 1));
    context.textAlign = i === 0 ? "left" : i === ticks - 1 ? "right" : "center";
    context.fillText(clock(t), x(t) + (i === 0 ? 0 : i === ticks - 1 ? bar : bar / 2), height);
  }
  const now = x(state.frame) + bar / 2;
  context.fillStyle = colour("choice");
  context.fillRect(now - 1, MARGIN.top - 4, 2, 2 * half + 8);
  context.beginPath();
  context.arc(now, MARGIN.top - 3, 4, 0, 7);
  context.fill();
}

function frameAt(event) {
  const box = timeline.getBoundingClientRect();
  const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
  return Math.min(T - 1, Math.max(0, Math.floor(share * T)));
}

timeline.addEventListener("pointerdown", (event) => {
  timeline.setPointerCapture(event.pointerId);
  change({ frame: frameAt(event) });
});
timeline.addEventListener("pointermove", (event) => {
  const t = frameAt(event);
  if (event.buttons) change({ frame: t });
  const sides = [shown(0), shown(1)];
  if (!sides[0] || !sides[1]) return;
  const lines = sides.map(({ counts }, side) => `${letter(side)} ${nameOf(side)}: ${many(keptIn(counts, secondAt(t)), "patch")} in this second`);
  showTip(event, `${clock(t)} · frame ${whole(t + 1)}\n${lines.join("\n")}`);
});
timeline.addEventListener("pointerleave", hideTip);

function drawBusiest() {
  const answer = shown(0);
  if (!answer || !isStale("busiest", state.methods[0], answer.stop)) return;
  const top = Array.from(answer.counts.keys())
    .sort((a, b) => answer.counts[b] - answer.counts[a] || a - b)
    .slice(0, 8)
    .filter((t) => answer.counts[t] > 0);
  byId("busiest-title").textContent = `The frames that keep most in A, ${nameOf(0)}`;
  byId("busiest").replaceChildren(
    ...top.map((t) =>
      element(
        "button",
        { type: "button", className: "thumb", ariaLabel: `Go to ${clock(t)}, ${answer.counts[t]} kept`, onclick: () => change({ frame: t, playing: false }) },
        thumbnail(t, 240, (cell) => answer.has(t * CELLS + cell), true),
        element("span", { text: `${clock(t)} · ${answer.counts[t]} kept` }),
      ),
    ),
  );
}

// ---- t-SNE: one plot a panel

byId("tsne").hidden = !tsne;

const extent = (values) => {
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  return { low, span: high - low || 1 };
};

const plots = !tsne?.indices.length ? [] : [0, 1].map((side) => {
  const canvas = element("canvas", { tabIndex: 0, role: "application" });
  const caption = element("h3");
  const [x, y] = [0, 1].map((axis) => extent(tsne.xy.filter((_, i) => i % 2 === axis)));
  const plot = { side, canvas, caption, point: null };
  plot.at = (i) => {
    const [w, h] = [canvas.clientWidth - 24, canvas.clientHeight - 24];
    return [12 + ((tsne.xy[2 * i] - x.low) / x.span) * w, 12 + h - ((tsne.xy[2 * i + 1] - y.low) / y.span) * h];
  };
  byId("tsne").querySelector(".plots").append(element("figure", {}, caption, canvas));
  new ResizeObserver(draw).observe(canvas);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    plot.point = nearestPoint(plot, event.clientX - box.left, event.clientY - box.top);
    if (plot.point === null) hideTip();
    else tipOfPoint(event, plot);
    draw();
  });
  const leave = () => {
    plot.point = null;
    hideTip();
    draw();
  };
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("click", () => plot.point !== null && goTo(tsne.indices[plot.point]));
  canvas.addEventListener("keydown", (event) => {
    const towards = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (towards) {
      plot.point = plot.point === null ? 0 : (pointTowards(plot, ...towards) ?? plot.point);
      const [px, py] = plot.at(plot.point);
      const box = canvas.getBoundingClientRect();
      tipOfPoint({ clientX: box.left + px, clientY: box.top + py }, plot);
      draw();
    } else if (event.key === "Enter" && plot.point !== null) goTo(tsne.indices[plot.point]);
    else return;
    event.preventDefault();
    event.stopPropagation(); // here arrows walk over points, not frames
  });
  return plot;
});

function nearestPoint(plot, x, y) {
  let [best, distance] = [null, 14 ** 2];
  for (let i = 0; i < tsne.indices.length; i++) {
    const [px, py] = plot.at(i);
    const d = (px - x) ** 2 + (py - y) ** 2;
    if (d < distance) [best, distance] = [i, d];
  }
  return best;
}

function pointTowards(plot, right, down) {
  const [x, y] = plot.at(plot.point);
  let [best, distance] = [null, Infinity];
  for (let i = 0; i < tsne.indices.length; i++) {
    const [px, py] = plot.at(i);
    const along = (px - x) * right + (py - y) * down;
    const across = Math.abs((px - x) * down) + Math.abs((py - y) * right);
    if (along > 0 && across <= along && along + across < distance) [best, distance] = [i, along + across];
  }
  return best;
}

function tipOfPoint(at, plot) {
  const token = tsne.indices[plot.point];
  const answer = shown(plot.side);
  if (answer) showTip(at, `${answer.has(token) ? "kept" : "dropped"}: ${where(token)}`, closeUp(token, 96));
}

function drawPlot({ side, canvas, caption, point, at }) {
  const answer = shown(side);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!answer || !width) return;
  byId("tsne-caption").textContent = data.tsne.caption;
  const count = tsne.indices.reduce((sum, token) => sum + answer.has(token), 0);
  const says = `${letter(side)}, ${nameOf(side)}: ${whole(count)} of ${whole(tsne.indices.length)} sampled tokens kept (green)`;
  caption.textContent = says;
  canvas.setAttribute("aria-label", `t-SNE of tokens. ${says}. Arrow keys walk over the points, Enter goes to a patch.`);
  if (!isStale(`plot-${side}`, state.methods[side], answer.stop, width, height, point, state.token, document.documentElement.dataset.theme, devicePixelRatio)) return;
  const context = fitted(canvas, width, height);
  const radius = Math.max(1.6, Math.min(3.2, width / 190));
  const dot = (i, size) => {
    context.beginPath();
    context.arc(...at(i), size, 0, 7);
    context.fill();
  };
  for (const keep of [false, true]) {
    context.fillStyle = colour(keep ? "accent" : "dot");
    context.globalAlpha = keep ? 1 : 0.75;
    tsne.indices.forEach((token, i) => Boolean(answer.has(token)) === keep && dot(i, keep ? radius * 1.25 : radius));
  }
  context.globalAlpha = 1;
  const ring = (i, line) => {
    context.beginPath();
    context.arc(...at(i), radius + 3, 0, 7);
    context.lineWidth = line;
    context.strokeStyle = colour("choice");
    context.stroke();
  };
  if (state.token !== null) {
    const related = relatedTo(answer);
    tsne.indices.forEach((token, i) => {
      if (token === state.token) ring(i, 3);
      else if (related(token)) ring(i, 1.5);
    });
  }
  if (point !== null) ring(point, 2);
}

// ---- the scatter: one point a method

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, { text, ...attributes } = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function drawScatter() {
  const narrow = window.innerWidth < 600;
  if (!isStale("scatter", state.stop, narrow)) return;
  const points = data.methods.flatMap((method, index) => {
    const stop = method.stops_run[nearestPlace(index)];
    const point = method.scatter[stop];
    return point && point.every((value) => value !== null) ? [{ name: method.name, exact: stop === state.stop, stop, x: point[0], y: point[1] }] : [];
  });
  byId("scatter").hidden = !data.methods.some((method) => Object.keys(method.scatter).length);
  const others = points.filter((point) => !point.exact);
  byId("scatter-lead").textContent =
    `Averaged sum coverage (representative, rightwards) and averaged distance (diverse, upwards) at ${data.stops[state.stop].label}, each z-scored: 0 is the mean, 1 a standard deviation.` +
    (others.length ? ` Hollow: not run at this ratio, shown at the nearest it has (${others.map((point) => `${point.name} ${data.stops[point.stop].label}`).join(", ")}).` : "");
  const [width, height, pad] = narrow ? [330, 330, 40] : [720, 420, 48];
  const reach = 1.15 * Math.max(1, ...points.flatMap(({ x, y }) => [Math.abs(x), Math.abs(y)]));
  const px = (x) => pad + ((x + reach) / (2 * reach)) * (width - pad - 12);
  const py = (y) => 12 + ((reach - y) / (2 * reach)) * (height - pad - 12);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": points.map(({ name, x, y }) => `${name}: ${x.toFixed(2)}, ${y.toFixed(2)}`).join("; ") });
  drawing.append(
    svg("rect", { class: "frame", x: pad, y: 12, width: width - pad - 12, height: height - pad - 12, rx: 6 }),
    svg("line", { class: "zero", x1: px(0), x2: px(0), y1: 12, y2: height - pad }),
    svg("line", { class: "zero", x1: pad, x2: width - 12, y1: py(0), y2: py(0) }),
    svg("text", { class: "axis", x: (width + pad) / 2, y: height - 6, "text-anchor": "middle", text: "averaged sum coverage (z) →" }),
    svg("text", { class: "axis", transform: `translate(13 ${(height - pad) / 2}) rotate(-90)`, "text-anchor": "middle", text: "averaged distance (z) →" }),
  );
  for (let tick = -Math.floor(reach); tick <= reach; tick++) {
    drawing.append(
      svg("text", { class: "axis", x: px(tick), y: height - pad + 16, "text-anchor": "middle", text: tick }),
      svg("text", { class: "axis", x: pad - 8, y: py(tick) + 4, "text-anchor": "end", text: tick }),
    );
  }
  const taken = points.map(({ x, y }) => ({ left: px(x) - 7, top: py(y) - 7, right: px(x) + 7, bottom: py(y) + 7 }));
  for (const point of points) {
    drawing.append(svg("circle", { cx: px(point.x), cy: py(point.y), r: 5, class: point.exact ? "" : "nearest" }));
    drawing.append(label(point.name, px(point.x), py(point.y), taken, width));
  }
  byId("scatter").querySelector(".plot").replaceChildren(drawing);
}

/** A name beside its point, at the first of a few places where it hides nothing. */
function label(name, x, y, taken, width) {
  const long = name.length * 7.2; // about what 13 px of a system font take
  const places = [[10, 4, "start"], [-10, 4, "end"], [0, -11, "middle"], [0, 20, "middle"], [10, -12, "start"], [10, 20, "start"], [-10, -12, "end"], [-10, 20, "end"]];
  const boxes = places.map(([dx, dy, anchor]) => {
    const left = x + dx - { start: 0, middle: long / 2, end: long }[anchor];
    return { left, right: left + long, top: y + dy - 11, bottom: y + dy + 3 };
  });
  const free = (box) => box.left > 0 && box.right < width && taken.every((other) => box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom);
  const chosen = Math.max(0, boxes.findIndex(free));
  taken.push(boxes[chosen]);
  const [dx, dy, anchor] = places[chosen];
  return svg("text", { x: x + dx, y: y + dy, "text-anchor": anchor, text: name });
}

// ---- the table

const fixed = (digits) => (value) => value.toFixed(digits);
const COLUMNS = [
  { key: "method", name: "method" },
  { key: "stop", name: "ratio", show: (stop) => data.stops[stop].label, says: "kept / total, as asked for" },
  { key: "tokens", name: "tokens", show: whole, says: "how many were really kept" },
  { key: "coverage", name: "coverage", show: fixed(4), better: 1, says: "mean, over all tokens, of the highest cosine with any token kept" },
  { key: "worst", name: "worst 5%", show: fixed(4), better: 1, says: "the same mean over the twentieth of the tokens that are covered worst: what is rare" },
  // a bound speaks of the problem its own method solved, so the higher of two is not the better method
  { key: "bound", name: "bound", show: fixed(4), says: "certificate: the choice has at least this share of the best possible value of its method's own objective; not compared between methods" },
  { key: "averaged_sum_coverage", name: "sum coverage", show: fixed(4), better: 1, says: "averaged sum coverage: mean cosine between every token and every kept one; higher is more representative" },
  { key: "averaged_distance", name: "distance", show: fixed(4), better: 1, says: "averaged distance: mean of 1 − cosine between kept tokens; higher is more diverse" },
  { key: "redundancy", name: "redundancy", show: fixed(4), better: -1, says: "mean, over kept tokens, of the highest cosine with one kept in another block of 32 frames; lower repeats less" },
  { key: "seconds", name: "seconds", show: (value) => value.toPrecision(3), better: -1, says: "for the choice, without decoding and encoding; with the representatives of methods that know them" },
];
const rows = data.methods.flatMap((method) => method.rows.map((row) => ({ method: method.name, ...row })));
const sorting = { key: "stop", descending: false };

function isBest(row, { key, show, better }) {
  if (!better || row[key] === null) return false;
  const rivals = rows.filter((other) => other.stop === row.stop && other[key] !== null);
  const best = rivals.reduce((a, b) => (better * b[key] > better * a[key] ? b : a));
  // what reads the same is marked the same
  return rivals.length > 1 && show(row[key]) === show(best[key]);
}

function drawTable() {
  const only = byId("only").checked;
  if (!isStale("table", sorting, state.stop, only)) return;
  const sign = sorting.descending ? -1 : 1;
  const sorted = rows
    .filter((row) => !only || row.stop === state.stop)
    .sort((a, b) => {
      const [x, y] = [a[sorting.key], b[sorting.key]];
      if (x === null || y === null) return (x === null) - (y === null); // what has no number comes last, either way
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  const table = byId("table");
  table.tHead.querySelectorAll("th").forEach((head, i) => {
    if (COLUMNS[i].key === sorting.key) head.ariaSort = sorting.descending ? "descending" : "ascending";
    else head.removeAttribute("aria-sort");
  });
  table.tBodies[0].replaceChildren(
    ...sorted.map((row) =>
      element(
        "tr",
        { className: row.stop === state.stop ? "current" : "" },
        ...COLUMNS.map((column) => {
          if (column.key === "method") return element("th", { scope: "row", text: row.method });
          const best = isBest(row, column);
          return element("td", { className: best ? "best" : "", title: best ? `best at ${data.stops[row.stop].label}` : "", text: row[column.key] === null ? "–" : column.show(row[column.key]) });
        }),
      ),
    ),
  );
}

byId("table").tHead.append(
  element(
    "tr",
    {},
    ...COLUMNS.map(({ key, name }) => {
      const sort = () => {
        Object.assign(sorting, { descending: sorting.key === key && !sorting.descending, key });
        draw();
      };
      return element("th", { scope: "col" }, element("button", { type: "button", text: name, onclick: sort }));
    }),
  ),
);
byId("only").addEventListener("change", draw);
byId("glossary").append(...COLUMNS.filter(({ says }) => says).flatMap(({ name, says }) => [element("dt", { text: name }), element("dd", { text: says })]));

// ---- the tip that follows the pointer

function showTip({ clientX, clientY }, text, ...before) {
  const tip = byId("tip");
  tip.hidden = false;
  tip.replaceChildren(...before, text);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${clientY + 18 + height > innerHeight ? clientY - height - 12 : clientY + 18}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

draw();
