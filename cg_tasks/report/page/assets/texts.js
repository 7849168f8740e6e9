// One sample's texts: what was asked, what was said, what counted as a hit.

const LONGEST = 20000; // characters shown at once

/** A sample of an unpacked run, put together from its columns. */
function sampleAt(run, i) {
  const { docs, said } = run;
  const query = docs.query?.[i] ?? "";
  const prompt = run.prompts.prompt[i];
  return {
    unit: run.units[i],
    id: docs.id[i],
    concept: docs.concept?.[i] ?? "",
    intent: docs.intent?.[i] ?? "",
    role: docs.role?.[i] ?? "",
    author: docs.author?.[i] ?? "",
    query,
    target: docs.target?.[i] ?? "",
    prompt: typeof prompt === "string" ? prompt : prompt.join(query),
    arms: said.arms.filter((arm) => arm.answer?.[i] != null || hasScores(arm, i)).map((arm) => armAt(arm, i)),
    scores: Object.entries(said.scores).map(([name, values]) => [name, values[i]]),
    verdict: Object.fromEntries(Object.entries(said.verdict).map(([name, values]) => [name, values[i]])),
  };
}

function hasScores(arm, i) {
  return Object.values(arm.scores).some((values) => values[i] !== null);
}

function armAt(arm, i) {
  const trace = arm.trace?.[i] ?? "";
  const answer = arm.answer?.[i] ?? "";
  const raw = arm.raw?.[i] ?? null;
  return {
    name: arm.name,
    trace,
    answer,
    raw: Array.isArray(raw) ? raw[0] + trace + raw[1] + answer + raw[2] : (raw ?? answer),
    whole: raw === null, // the answer is the whole generation
    prefill: arm.prefill?.[i] ?? "",
    opened: Boolean(arm.opened?.[i]),
    hit: arm.hit[i],
    scores: Object.entries(arm.scores).map(([name, values]) => [name, values[i]]),
  };
}

/** A pattern that finds a canary as scoring does: whitespace of any kind between its words, case kept. */
function canaryPattern(text) {
  const words = text.split(/\s+/).filter(Boolean).map(escaped);
  return words.length ? new RegExp(words.join("\\s+"), "g") : null;
}

function searchPattern(text) {
  return text ? new RegExp(escaped(text), "gi") : null;
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

/** ``text`` as nodes, with what the patterns find marked: [[pattern, class, title], …]; earlier patterns win. */
function marked(text, patterns) {
  const spans = [];
  for (const [pattern, look, title] of patterns) {
    if (!pattern) continue;
    for (const match of text.matchAll(pattern)) {
      const span = [match.index, match.index + match[0].length, look, title];
      if (!spans.some(([from, to]) => span[0] < to && from < span[1])) spans.push(span);
      if (spans.length > 500) break;
    }
  }
  spans.sort((a, b) => a[0] - b[0]);
  const nodes = [];
  let at = 0;
  for (const [from, to, look, title] of spans) {
    nodes.push(text.slice(at, from), make("mark", { class: look, title }, text.slice(from, to)));
    at = to;
  }
  return [...nodes, text.slice(at)];
}

/** A titled text. Very long ones are cut, with a button that shows the rest. */
function textBlock(title, text, kind = "", patterns = [], nothing = "empty") {
  const block = make("div", { class: `text ${kind}` }, make("h4", {}, title));
  if (text === null || text === "") {
    block.append(make("p", { class: "nothing" }, nothing));
    return block;
  }
  const body = make("pre", { dir: "auto" }, ...marked(text.slice(0, LONGEST), patterns));
  block.append(body);
  if (text.length > LONGEST) {
    const more = make("button", { type: "button", class: "plain" }, `Show all ${text.length.toLocaleString("en")} characters`);
    more.addEventListener("click", () => {
      body.replaceChildren(...marked(text, patterns));
      more.remove();
    });
    block.append(more);
  }
  return block;
}

function number(value) {
  return Number.isInteger(value) ? String(value) : value.toFixed(3);
}

function scoreLine(scores) {
  const found = scores.filter(([, value]) => value !== null && value !== undefined);
  if (!found.length) return null;
  const parts = found.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, number(value).replace("-", "−"))));
  return make("p", { class: "scores" }, ...parts);
}

function hitTag(hit) {
  return hit === null ? null : make("span", { class: hit ? "tag hit" : "tag" }, hit ? "● hit" : "○ miss");
}

/** One generation. forced: of teacher forcing, where the answer is the text that was scored and not written. */
function armBlock(arm, patterns, alone, forced) {
  const name = alone && (arm.hit === null || arm.name === "auto") ? "Response" : arm.name;
  const block = make("div", { class: "arm" }, make("header", {}, make("b", {}, name), hitTag(arm.hit), scoreLine(arm.scores)));
  if (arm.prefill) block.append(textBlock("Prefilled by the arm", arm.prefill.trim(), "prefill", patterns));
  if (arm.trace || (!arm.whole && !forced && !arm.prefill)) {
    block.append(textBlock(arm.opened ? "Trace, opened by the prompt" : "Trace", arm.trace, "trace", patterns, "none, or an empty one"));
  }
  block.append(textBlock(forced ? "Scored tokens" : "Answer", arm.answer, "answer", patterns, "empty"));
  if (!arm.whole) block.append(folded(forced ? "Every token's scores, as logged" : "As the model wrote it, tags and all", "Raw", arm.raw, patterns));
  return block;
}

/** A text that is put in when its summary is opened. */
function folded(summary, title, text, patterns) {
  const details = make("details", {}, make("summary", {}, summary));
  details.addEventListener("toggle", () => details.append(textBlock(title, text, "raw", patterns)), { once: true });
  return details;
}

function verdictBlock(verdict) {
  if (!verdict.status) return null;
  const scored = verdict.score ?? null;
  const words = [verdict.status, verdict.level == null ? null : `level ${verdict.level}`, scored === null ? "no score" : `score ${number(scored)}`];
  const block = make("div", { class: "text" }, make("h4", {}, "Judge's verdict"), make("p", { class: "scores" }, words.filter(Boolean).join(" · ")));
  if (verdict.reasoning) block.append(make("pre", { dir: "auto" }, verdict.reasoning.slice(0, LONGEST)));
  return block;
}
