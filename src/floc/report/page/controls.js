// The page header, the sliders, playback and the keyboard.

const MS_PER_FRAME = matchMedia("(prefers-reduced-motion: reduce)").matches ? 700 : 150;

byId("title").textContent = data.title;
byId("command").textContent = data.command;
const showFact = ([label, text]) => element("div", {}, element("dt", { text: label }), element("dd", { text }));
byId("facts").append(...data.facts.map(showFact));
byId("notes").hidden = data.notes.length === 0;
byId("notes").querySelector("ul").append(...data.notes.map((text) => element("li", { text })));

const [ratioSlider, frameSlider] = [byId("ratio"), byId("frame")];
const lastStep = data.steps.length - 1;
ratioSlider.max = lastStep;
frameSlider.max = T - 1;
// more tokens to the right, while step 0 has the most
ratioSlider.addEventListener("input", () => change({ step: lastStep - ratioSlider.value }));
frameSlider.addEventListener("input", () => change({ frame: Number(frameSlider.value) }));

function drawControls() {
  ratioSlider.value = lastStep - state.step;
  frameSlider.value = state.frame;
  const frameText = `${formatTime(state.frame)} · frame ${formatCount(state.frame)} / ${formatCount(T - 1)}`;
  const labels = [[ratioSlider, "ratio-text", describeStep(state.step)], [frameSlider, "frame-text", frameText]];
  for (const [slider, id, text] of labels) {
    byId(id).textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  byId("play").setAttribute("aria-pressed", state.playing);
  byId("play").setAttribute("aria-label", state.playing ? "Pause" : "Play");
}

const moveFrame = (by) => change({ frame: state.frame + by });
const setMethod = (side, method) => change({ methods: state.methods.with(side, method) });
const closePatch = () => change({ token: null });
const toggleToken = (token) => change({ token: state.token === token ? null : token });
const goTo = (token) => change({ frame: frameOf(token), token, cursor: token % CELLS, playing: false });

/** Go to the next frame, in a direction, of which the active panel's method keeps a token. */
function jumpToKept(direction) {
  const counts = currentSelection(state.activePanel)?.counts ?? [];
  for (let t = state.frame + direction; t >= 0 && t < T; t += direction) {
    if (counts[t] > 0) return change({ frame: t });
  }
}

let playback = 0; // number of times play was toggled; a timer of an earlier playback stops

function togglePlay() {
  change({ playing: !state.playing, frame: state.frame === T - 1 ? 0 : state.frame });
  playback++;
  if (state.playing) setTimeout(playNext, MS_PER_FRAME, playback);
}

async function playNext(started) {
  const isCurrent = () => state.playing && started === playback;
  if (!isCurrent()) return;
  if (state.frame === T - 1) return change({ playing: false });
  const start = performance.now();
  moveFrame(1);
  await new Promise(requestAnimationFrame);
  await Promise.all(panels.map(({ image }) => image.decode().catch(() => {}))); // do not run ahead of the images
  if (isCurrent()) setTimeout(playNext, MS_PER_FRAME - (performance.now() - start), started);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const [keepMore, keepFewer] = [-1, 1].map((by) => () => change({ step: state.step + by }));
const [jumpBack, jumpAhead] = [-1, 1].map((direction) => () => jumpToKept(direction));
const KEYS = {
  ArrowLeft: () => moveFrame(-1), ArrowRight: () => moveFrame(1), ",": jumpBack, ".": jumpAhead, p: togglePlay,
  ArrowUp: keepMore, "+": keepMore, "=": keepMore, ArrowDown: keepFewer, "-": keepFewer, Escape: closePatch,
};
document.querySelectorAll("[data-key]").forEach((node) => node.addEventListener("click", KEYS[node.dataset.key]));

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("select")) return;
  const picture = target.closest(".picture");
  const scrolls = (key === "ArrowUp" || key === "ArrowDown") && !byId("viewer").contains(target);
  const movesSlider = key in ARROWS && target.matches('input[type="range"]');
  if (picture && event.shiftKey && key in ARROWS) moveCursor(...ARROWS[key]);
  else if (picture && (key === "Enter" || key === " ")) toggleToken(state.frame * CELLS + state.cursor);
  else if (scrolls || movesSlider) return;
  else if (/^[1-9]$/.test(key) && key <= data.methods.length) setMethod(state.activePanel, key - 1);
  else if (key in KEYS) KEYS[key]();
  else return;
  event.preventDefault();
});
