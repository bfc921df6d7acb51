// The two panels: a method's frame with kept patches boxed, and details of the selected patch.

const GALLERY = 12; // patches shown of those that a kept patch represents

const panels = [0, 1].map((side) => {
  const root = byId("panel").content.firstElementChild.cloneNode(true);
  const find = (selector) => root.querySelector(selector);
  const [picture, image, layers, select] = [".picture", "img", ".picture svg", "select"].map(find);
  find(".badge").textContent = letter(side);
  root.setAttribute("aria-label", `Panel ${letter(side)}`);
  select.setAttribute("aria-label", `Method in panel ${letter(side)}`);
  select.append(...data.methods.map((method, value) => element("option", { text: method.name, value })));
  select.addEventListener("change", () => setMethod(side, Number(select.value)));
  for (const type of ["focusin", "pointerdown"]) {
    root.addEventListener(type, () => state.activePanel !== side && change({ activePanel: side }));
  }
  Object.assign(image, { width: IMAGE.width, height: IMAGE.height });
  image.addEventListener("error", () => showError(`the image of frame ${state.frame} cannot be decoded`));
  layers.setAttribute("viewBox", `0 0 ${IMAGE.width} ${IMAGE.height}`);
  picture.addEventListener("click", (event) => {
    state.cursor = cellAt(event, picture, W, H);
    toggleToken(state.frame * CELLS + state.cursor);
  });
  byId("panel").parentElement.append(root);
  return { side, root, find, picture, image, layers, select };
});

function moveCursor(right, down) {
  const [x, y] = [state.cursor % W, Math.floor(state.cursor / W)];
  change({ cursor: ((y + down + H) % H) * W + ((x + right + W) % W) });
}

function drawPanel(panel) {
  const { side, root, find, select } = panel;
  const method = data.methods[state.methods[side]];
  select.value = state.methods[side];
  root.classList.toggle("active", state.activePanel === side);
  find(".description").textContent = method.description;
  const selection = currentSelection(side);
  root.ariaBusy = !selection;
  if (!selection) return;
  const label = data.steps[selection.step].label;
  const [count, total] = [selection.counts[state.frame], selection.kept.length];
  Object.assign(root.dataset, { method: method.name, step: label, frame: state.frame, keptHere: count, kept: total });
  find(".counts").replaceChildren(
    element("b", { text: formatCount(count) }),
    ` of ${formatCount(CELLS)} patches kept in this frame, ${formatCount(total)} of ${formatCount(TOKENS)} in the video`,
  );
  find(".other-step").hidden = selection.step === state.step;
  find(".other-step").textContent =
    `${method.name} was not run at ${data.steps[state.step].label}; this is its result at ${label}.`;
  drawPicture(panel, selection);
  drawPatch(side, find(".patch"), selection);
}

function drawPicture({ side, picture, image, layers }, selection) {
  const first = state.frame * CELLS;
  const cursorToken = first + state.cursor;
  const isRelated = relatedTo(selection);
  const cells = Array.from({ length: CELLS }, (_, cell) => cell);
  const isKept = (cell) => selection.has(first + cell);
  const isDim = (cell) => !isKept(cell) && !isRelated(first + cell) && first + cell !== state.token;
  if (isStale(`image-${side}`, state.frame)) image.src = imageUrl(state.frame);
  layers.replaceChildren(
    outline(cells.filter(isDim), "dropped", 0),
    outline(cells.filter(isKept), "kept"),
    outline(cells.filter((cell) => subjectTokens.has(first + cell)), "subject", -LINE),
    outline(cells.filter((cell) => isRelated(first + cell)), "related"),
    outline(cells.filter((cell) => first + cell === state.token), "selected"),
    outline([state.cursor], "cursor"), // visible while the picture has the keyboard focus
  );
  picture.ariaLabel =
    `${methodName(side)}, frame at ${formatTime(state.frame)}: ${selection.counts[state.frame]} of ${CELLS} patches kept. ` +
    "Shift and arrow keys move to a patch, Enter selects it.";
  if (document.activeElement === picture) {
    byId("cursor-text").textContent = `${describeCell(cursorToken)}: ${selection.has(cursorToken) ? "kept" : "dropped"}`;
  }
}

/** Return a test for tokens that the selected one represents or, if it was dropped, for its representative. */
function relatedTo(selection) {
  const { token } = state;
  if (token === null) return () => false;
  if (!selection.has(token)) return (other) => other === selection.represents[token];
  return (other) => other !== token && selection.represents[other] === token;
}

// ---- details of the selected patch

function drawPatch(side, patch, selection) {
  const { token } = state;
  if (!isStale(`patch-${side}`, token, state.methods[side], selection.step, token === null ? 0 : state.frame)) return;
  for (const name of Object.keys(patch.dataset)) delete patch.dataset[name];
  patch.replaceChildren();
  if (token === null) return;
  const representative = selection.represents[token];
  Object.assign(patch.dataset, { token, representative });
  const isKept = selection.has(token);
  const close = button("×", closePatch, { ariaLabel: "Close" });
  patch.append(
    element("h3", {}, `${isKept ? "Kept" : "Dropped"}: ${describeToken(token)}`, close),
    ...(isKept ? keptDetails(patch, selection, token) : droppedDetails(token, representative)),
  );
}

const figure = (view, text, className = "") => element("figure", { className }, view, element("figcaption", { text }));
const goButton = (token) => button("Go there", () => goTo(token), { className: "go" });

const describeFrame = (frame) => `frame ${formatCount(frame)}, ${formatTime(frame)}`;
const frameFigure = (token) => figure(thumbnail(token, "kept"), describeFrame(frameOf(token)), "wide");

function droppedDetails(token, representative) {
  const gap_s = data.times_s[frameOf(representative)] - data.times_s[frameOf(token)];
  const lag = gap_s === 0 ? "in the same frame" : `${Math.abs(gap_s).toFixed(1)} s ${gap_s < 0 ? "earlier" : "later"}`;
  const dropped = figure(closeUp(token, 112), "this patch, dropped");
  const kept = figure(closeUp(representative, 112), "its representative, kept");
  const arrow = element("span", { className: "arrow", text: "→", ariaHidden: true });
  return [
    element("p", { text: `It is represented by ${describeToken(representative)}, ${lag}.` }),
    element("div", { className: "pair" }, dropped, arrow, kept, frameFigure(representative)),
    goButton(representative),
  ];
}

function keptDetails(patch, selection, token) {
  const represented = [];
  selection.represents.forEach((by, other) => by === token && other !== token && represented.push(other));
  patch.dataset.represented = represented.length;
  const frames = new Set(represented.map(frameOf)).size;
  const here = represented.filter((other) => frameOf(other) === state.frame).length;
  const text = represented.length
    ? `It represents ${countOf(represented.length, "other patch")} in ${countOf(frames, "frame")}, ` +
      `${formatCount(here)} in the frame shown (amber).`
    : "It represents no other patch.";
  const details = [
    element("p", { text }),
    element("div", { className: "pair" }, figure(closeUp(token, 112), "this patch, kept"), frameFigure(token)),
  ];
  if (frameOf(token) !== state.frame) details.push(goButton(token));
  if (represented.length) {
    const count = Math.min(GALLERY, represented.length);
    const stride = represented.length / count;
    const samples = Array.from({ length: count }, (_, i) => represented[Math.floor((i + 0.5) * stride)]);
    const title = `${stride > 1 ? `${count} of the` : "The"} ${countOf(represented.length, "patch")} it represents`;
    const thumb = (other) => {
      const properties = { className: "thumb", ariaLabel: `Go to ${describeToken(other)}` };
      const time = element("span", { text: formatTime(frameOf(other)) });
      return button("", () => goTo(other), properties, closeUp(other, 72), time);
    };
    details.push(element("h3", { text: title }), element("div", { className: "gallery" }, ...samples.map(thumb)));
  }
  return details;
}

