// Tokens kept over time: A above the axis, B below it, on one scale.

// The frames of each second, from `first` up to `end`. Frames more than a second apart have a bar each.
const seconds = [];
data.times_s.forEach((time, t) => {
  const second = Math.floor(time - data.times_s[0] + 1e-6);
  if (seconds.at(-1)?.second === second) seconds.at(-1).end = t + 1;
  else seconds.push({ second, first: t, end: t + 1 });
});
const countIn = (counts, { first, end }) => counts.subarray(first, end).reduce((a, b) => a + b, 0);

const timeline = byId("timeline");
timeline.setAttribute("viewBox", `0 0 ${T} 2`);
const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (T - 1)));
byId("timeline-ticks").append(...[...new Set(ticks.map(formatTime))].map((text) => element("span", { text })));

function drawTimeline() {
  const selections = [currentSelection(0), currentSelection(1)];
  if (selections.includes(null)) return;
  timeline.querySelector(".now").setAttribute("d", `M${state.frame + 0.5} 0V2`);
  if (!isStale("timeline", state.methods, selections.map(({ step }) => step))) return;
  const counts = selections.map((selection) => seconds.map((second) => countIn(selection.counts, second)));
  const most = counts.flat().reduce((a, b) => Math.max(a, b), 1);
  const names = `A, ${methodName(0)}, upwards; B, ${methodName(1)}, downwards`;
  byId("timeline-text").textContent = `Patches kept per second: ${names}; at most ${most}. Click to go there.`;
  timeline.ariaLabel = byId("timeline-text").textContent;
  const gap = seconds.length < 200 ? 0.1 : 0;
  const bars = counts.map((values, side) =>
    seconds.map(({ first, end }, i) => {
      const height = ((side ? 1 : -1) * values[i]) / most;
      return `M${first} 1v${height}H${end - gap * (end - first)}V1z`;
    }),
  );
  timeline.querySelector(".bars").setAttribute("d", bars.flat().join(""));
}

timeline.addEventListener("pointerdown", (event) => {
  timeline.setPointerCapture(event.pointerId);
  change({ frame: cellAt(event, timeline, T, 1) });
});
timeline.addEventListener("pointermove", (event) => {
  const t = cellAt(event, timeline, T, 1);
  if (event.buttons) change({ frame: t });
  const second = seconds.find(({ end }) => t < end);
  const lines = [0, 1].map((side) => {
    const count = countIn(currentSelection(side)?.counts ?? new Uint32Array(T), second);
    return `${letter(side)} ${methodName(side)}: ${countOf(count, "patch")} in this second`;
  });
  showTip(event, `${formatTime(t)} · frame ${formatCount(t)}\n${lines.join("\n")}`);
});
timeline.addEventListener("pointerleave", hideTip);
