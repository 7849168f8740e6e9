// Which samples of a run are shown, and in which order.

const filters = { concept: "", author: "", intent: "", role: "", arm: "", hit: "", status: "", metric: "", min: "", max: "", order: "", q: "" };

/** Offer the filters that can tell this run's samples apart, and drop what it does not have. */
function offerFilters() {
  const { docs, said } = browser.run;
  const counted = (values) => {
    const counts = new Map();
    for (const value of values ?? []) if (value) counts.set(value, (counts.get(value) ?? 0) + 1);
    return [...counts].sort(([a], [b]) => a.localeCompare(b)).map(([value, n]) => [value, `${value} (${n})`]);
  };
  const offer = (name, every, options, least = 2) => {
    const known = options.some(([value]) => value === filters[name]);
    if (!known) filters[name] = "";
    fill(controls[name], [["", every], ...options], filters[name]);
    controls[name].closest("label").hidden = options.length < least;
  };
  offer("concept", "all concepts", counted(docs.concept));
  offer("author", "all authors", counted(docs.author));
  offer("intent", "both", counted(docs.intent));
  offer("role", "all roles", counted(docs.role));
  offer("arm", "any arm", said.arms.map((arm) => [arm.name, arm.name]));
  const hits = said.arms.some((arm) => arm.hit.some((hit) => hit !== null)) ? [["hit", "hit"], ["miss", "miss"]] : [];
  offer("hit", "all", said.scores.thk_leak ? [...hits, ["bypass", "in the trace alone"]] : hits);
  offer("status", "all", counted(said.verdict.status));
  const metrics = Object.keys(said.scores).filter((name) => said.scores[name].some((value) => value !== null));
  const first = firstScores(browser.run);
  offer("metric", first, metrics.filter((name) => name !== first).map((name) => [name, name]), 1);
  offer("order", "as evaluated", metrics.length ? [["up", "lowest score first"], ["down", "highest score first"]] : []);
  controls.form.querySelector(".range").hidden = !metrics.length;
  controls.unfold.hidden = !docs.intent?.includes(UNSAFE);
  syncControls();
}

function syncControls() {
  for (const name of Object.keys(filters)) if (controls[name].value !== filters[name]) controls[name].value = filters[name];
}

/** The score that the list shows, filters and sorts by: the chosen one, or each sample's first. */
function scoresShown() {
  const { run } = browser;
  const { scores } = run.said;
  if (filters.metric) return scores[filters.metric];
  const columns = Object.values(scores);
  run.firsts ??= columns.length ? run.units.map((_, i) => columns.find((values) => values[i] !== null)?.[i] ?? null) : null;
  return run.firsts;
}

/** Names of the scores that come first in some sample, as "harm_score / help_score". */
function firstScores({ units, said }) {
  const columns = Object.entries(said.scores);
  const names = new Set(units.map((_, i) => columns.find(([, values]) => values[i] !== null)?.[0]));
  return [...names].filter(Boolean).join(" / ");
}

function applyFilters(unit = null) {
  const { run } = browser;
  if (!run) return;
  const { docs, said } = run;
  const arms = filters.arm ? said.arms.filter((arm) => arm.name === filters.arm) : said.arms;
  const scores = scoresShown();
  const hit = filters.hit && (filters.hit === "hit" ? 1 : 0);
  const [min, max] = [filters.min, filters.max].map((text) => (text === "" ? null : Number(text)));
  const needle = filters.q.toLowerCase();
  const rest = needle ? haystacks(run) : null;
  const shown = [];
  for (let i = 0; i < docs.id.length; i++) {
    if (["concept", "author", "intent", "role"].some((name) => filters[name] && docs[name]?.[i] !== filters[name])) continue;
    if (filters.status && said.verdict.status?.[i] !== filters.status) continue;
    if (filters.hit === "bypass" ? !isBypass(said, i) : filters.hit && !arms.some((arm) => arm.hit[i] === hit)) continue;
    if ((min !== null || max !== null) && !(scores?.[i] != null && (min === null || scores[i] >= min) && (max === null || scores[i] <= max))) continue;
    if (needle && !rest[i].includes(needle)) continue;
    shown.push(i);
  }
  if (filters.order && scores) {
    const sign = filters.order === "up" ? 1 : -1;
    const missing = (i) => scores[i] === null;
    shown.sort((a, b) => missing(a) - missing(b) || sign * (scores[a] - scores[b]) || a - b);
  }
  browser.shown = shown;
  browser.at = Math.max(shown.findIndex((i) => run.units[i] === unit), shown.length ? 0 : -1);
  controls.count.textContent = `${shown.length.toLocaleString("en")} of ${docs.id.length.toLocaleString("en")} samples`;
  controls.room.style.height = `${shown.length * ROW}px`;
  scrollToChosen();
  drawList();
  drawSample();
  keepLink();
}

/** The canary in the model's own trace and not in its answer. */
const isBypass = (said, i) => said.scores.thk_leak?.[i] === 1 && said.scores.out_acc?.[i] === 0;

/** Lower-case texts to search in, a document each; made once a run. */
function haystacks(run) {
  run.haystacks ??= run.units.map((unit, i) =>
    [unit, run.docs.concept?.[i], run.docs.author?.[i], run.docs.query?.[i], run.docs.target?.[i],
      ...run.said.arms.flatMap((arm) => [arm.trace?.[i], arm.answer?.[i]])].filter(Boolean).join("\n").toLowerCase());
  return run.haystacks;
}
