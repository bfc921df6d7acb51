// The table of measures. The glossary in page.html explains its columns.

const decimals = (value) => value.toFixed(4);
// `better` is 1 if a higher value is better, -1 if a lower one is. Bounds are not compared: each method bounds its own
// objective.
const COLUMNS = [
  { key: "method", name: "method" },
  { key: "step", name: "ratio", format: (step) => data.steps[step].label },
  { key: "tokens", name: "tokens", format: formatCount },
  { key: "coverage", name: "coverage", format: decimals, better: 1 },
  { key: "worst", name: "worst 5%", format: decimals, better: 1 },
  { key: "bound", name: "bound", format: decimals },
  { key: "averaged_sum_coverage", name: "sum coverage", format: decimals, better: 1 },
  { key: "averaged_distance", name: "distance", format: decimals, better: 1 },
  { key: "redundancy", name: "redundancy", format: decimals, better: -1 },
  { key: "seconds", name: "seconds", format: (value) => value.toPrecision(3), better: -1 },
];
const rows = data.methods.flatMap((method) => method.rows.map((row) => ({ method: method.name, ...row })));
const sorting = { key: "step", descending: false };

function isBest(row, { key, format, better }) {
  if (!better || row[key] === null) return false;
  const rivals = rows.filter((other) => other.step === row.step && other[key] !== null);
  const best = rivals.reduce((a, b) => (better * b[key] > better * a[key] ? b : a));
  return rivals.length > 1 && format(row[key]) === format(best[key]); // values that read the same are marked the same
}

function compareRows(a, b) {
  const [x, y] = [a[sorting.key], b[sorting.key]];
  if (x === null || y === null) return (x === null) - (y === null); // rows without a value come last
  return (sorting.descending ? -1 : 1) * (typeof x === "string" ? x.localeCompare(y) : x - y);
}

function drawCell(row, column) {
  if (column.key === "method") return element("th", { scope: "row", text: row.method });
  const value = row[column.key];
  const best = isBest(row, column) ? { className: "best", title: `best at ${data.steps[row.step].label}` } : {};
  return element("td", { text: value === null ? "–" : column.format(value), ...best });
}

function drawTable() {
  if (!isStale("table", sorting, state.step)) return;
  byId("table").tHead.querySelectorAll("th").forEach((head, i) => {
    if (COLUMNS[i].key === sorting.key) head.ariaSort = sorting.descending ? "descending" : "ascending";
    else head.removeAttribute("aria-sort");
  });
  byId("table").tBodies[0].replaceChildren(
    ...rows.toSorted(compareRows).map((row) => {
      const className = row.step === state.step ? "current" : "";
      return element("tr", { className }, ...COLUMNS.map((column) => drawCell(row, column)));
    }),
  );
}

const heads = COLUMNS.map(({ key, name }) => {
  const sort = () => {
    Object.assign(sorting, { descending: sorting.key === key && !sorting.descending, key });
    draw();
  };
  return element("th", { scope: "col" }, button(name, sort));
});
byId("table").tHead.append(element("tr", {}, ...heads));
