// The report's data and the state of the page.
// A token is its flat index t*H*W + y*W + x. A step is a position of the ratio slider: an index in data.steps.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const [T, H, W] = data.grid;
const CELLS = H * W; // tokens per frame
const TOKENS = T * CELLS;
const frameOf = (token) => Math.floor(token / CELLS);

const state = {
  frame: data.opens_at,
  step: 0,
  methods: [0, Math.min(1, data.methods.length - 1)], // of panels A and B
  activePanel: 0, // the panel that number keys and the jumps between frames refer to
  token: null, // the selected patch
  cursor: Math.floor(H / 2) * W + Math.floor(W / 2), // the cell that the keyboard points at
  playing: false,
};

function showError(error) {
  byId("error").hidden = false;
  byId("error").textContent = `This report cannot be shown completely: ${error.message ?? error}`;
}

if (typeof DecompressionStream === "undefined") showError("this browser is too old; use one from 2024 or later");

// ---- unpacking: render.py describes the format

async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The only top-level await, before anything is drawn: no drawing sees a half-loaded script.
const tsne = data.tsne && {
  indices: new Uint32Array((await inflate(data.tsne.indices)).buffer),
  xy: new Float32Array((await inflate(data.tsne.xy)).buffer),
};

const getBit = (bits, row, token) => (bits[row * Math.ceil(TOKENS / 8) + (token >> 3)] >> (token & 7)) & 1;

/** Return a method's selections: for each of its steps { kept, counts, represents, has }. */
async function unpackMethod(method) {
  const packed = JSON.parse(byId(`method-${method}`).textContent);
  const [keptBits, wrong, ...planes] = await Promise.all([packed.kept, packed.wrong, ...packed.places].map(inflate));
  const isKept = (s, token) => getBit(keptBits, s, token) === 1;
  const selections = [];
  let next = 0;
  for (let s = 0; s < data.methods[method].steps.length; s++) {
    const kept = Uint32Array.from({ length: TOKENS }, (_, token) => token).filter((token) => isKept(s, token));
    const counts = new Uint32Array(T);
    for (const token of kept) counts[frameOf(token)]++;
    const represents = new Uint32Array(TOKENS);
    const correct = (token, prediction) => {
      if (!getBit(wrong, s, token)) return prediction;
      const place = planes.reduce((sum, plane, i) => sum + plane[next] * 256 ** i, 0);
      next++;
      return kept[place];
    };
    const previous = selections[s - 1];
    for (const token of previous?.kept ?? []) represents[token] = correct(token, token);
    for (let token = 0; token < TOKENS; token++) {
      if (previous?.has(token)) continue;
      const predicted = previous ? represents[previous.represents[token]] : represents[token - CELLS] ?? token;
      represents[token] = correct(token, predicted);
    }
    selections.push({ kept, counts, represents, has: (token) => isKept(s, token) });
  }
  return selections;
}

const unpacked = new Map(); // method -> its selections, or null while they are unpacked

/** Return a method's selections, or null. Only the two methods on screen stay in memory. */
function selectionsOf(method) {
  if (!unpacked.has(method)) {
    unpacked.set(method, null);
    unpackMethod(method).then((selections) => {
      unpacked.set(method, selections);
      for (const other of unpacked.keys()) if (!state.methods.includes(other)) unpacked.delete(other);
      draw();
    }, showError);
  }
  return unpacked.get(method);
}

/** Return the position, in a method's own list of steps, of the step nearest to the current one. */
function nearestStep(method) {
  const distance = (step) => Math.abs(Math.log(data.steps[step].budget / data.steps[state.step].budget));
  const steps = data.methods[method].steps;
  return steps.reduce((best, step, i) => (distance(step) < distance(steps[best]) ? i : best), 0);
}

/** Return the selection that a panel shows, with its step; null while it is unpacked. */
function currentSelection(side) {
  const method = state.methods[side];
  const i = nearestStep(method);
  const selection = selectionsOf(method)?.[i];
  return selection ? { step: data.methods[method].steps[i], ...selection } : null;
}
