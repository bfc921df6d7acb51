// The question that a report opens with: the verdict, and what each method kept and answered.

const { subject } = data;
const subjectTokens = new Set(subject?.tokens ?? []);

if (subject) {
  byId("answer").hidden = false;
  byId("answer-title").textContent = subject.question;
  byId("verdict").textContent = subject.verdict;
  const steps = [...new Set(subject.rows.map((row) => row.step))];
  const methods = [...new Set(subject.rows.map((row) => row.method))];
  const head = element("tr", {}, ...["method", ...steps.map((step) => data.steps[step].label)].map((text) => element("th", { text })));
  byId("answers").append(
    element("thead", {}, head),
    element("tbody", {}, ...methods.map((method) => element("tr", {}, element("th", { text: method }), ...steps.map((step) => showAnswer(method, step))))),
  );
}

function showAnswer(method, step) {
  const row = subject.rows.find((other) => other.method === method && other.step === step);
  if (!row) return element("td", { text: "–" });
  const kept = `${row.kept} of ${countOf(subject.tokens.length, "patch")} kept`;
  const answer = element("b", { text: `${row.right ? "✓" : "✗"} ${row.answer}`, className: row.right ? "right" : "wrong" });
  return element("td", {}, ...(row.answer !== null ? [answer, element("br")] : []), kept);
}
