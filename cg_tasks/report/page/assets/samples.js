// The sample browser: one run at a time, a list of what the filters leave, one sample beside it.

const ROW = 56; // px; .item's height in style.css
const UNSAFE = "harmful";

const browser = { runs: [], run: null, entry: null, shown: [], at: -1, unfolded: new Set(), unfoldAll: false, compare: "", wanted: 0 };
const controls = {};

async function startBrowser() {
  const root = byId("browser");
  try {
    browser.runs = await unpacked("index");
  } catch (error) {
    root.append(make("p", { class: "none" }, `The samples cannot be shown: ${error.message}.`));
    return;
  }
  if (!browser.runs.some((run) => run.n)) {
    const why = browser.runs.map((run) => run.why).find(Boolean) ?? "No task of ours is among the results.";
    root.append(make("p", { class: "none" }, `There are no samples to show. ${why}`));
    return;
  }
  buildBrowser(root);
  if (location.hash === "#samples") byId("samples").scrollIntoView(); // the page was too short to get there before
  addEventListener("hashchange", followLink);
  // The first run is unpacked when someone comes near it, not when the page opens.
  if (location.hash.startsWith("#sample/")) followLink();
  else {
    const near = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      near.disconnect();
      if (!browser.run) openRun(browser.runs.find((run) => run.n));
    }, { rootMargin: "600px" });
    near.observe(root);
  }
}

function buildBrowser(root) {
  const select = (name, title) => {
    const label = labelled(title, (controls[name] = make("select", { "data-filter": name })));
    label.hidden = true; // until a run has something to choose from
    return label;
  };
  const input = (name, more) => (controls[name] = make("input", { "data-filter": name, ...more }));
  const unfold = make("input", { type: "checkbox", id: "unfold-all" });
  unfold.addEventListener("change", () => {
    browser.unfoldAll = unfold.checked;
    drawList();
    drawSample();
  });
  controls.task = make("select", { id: "sample-task" });
  controls.checkpoint = make("select", { id: "sample-checkpoint" });
  controls.task.addEventListener("change", () => openRun(sameCheckpoint(controls.task.value)));
  controls.checkpoint.addEventListener("change", () => openRun(byKey(controls.checkpoint.value), currentUnit()));
  const reset = make("button", { type: "button", class: "plain" }, "Clear filters");
  reset.addEventListener("click", () => {
    for (const name of Object.keys(filters)) filters[name] = "";
    syncControls();
    applyFilters(currentUnit());
  });
  controls.form = make(
    "form", { class: "filters", role: "search", "aria-label": "Filter the samples" },
    labelled("Task", controls.task, "wide full"), labelled("Checkpoint", controls.checkpoint, "wide full"),
    select("concept", "Concept"), select("author", "Author"), select("intent", "Intent"), select("role", "Role"),
    select("arm", "Arm"), select("hit", "Hit or miss"), select("status", "Verdict"), select("metric", "Score"),
    make("div", { class: "range", role: "group", "aria-label": "Range of the score" }, "Score from, to",
      make("span", {}, input("min", { type: "number", step: "any", "aria-label": "lowest score" }), "–", input("max", { type: "number", step: "any", "aria-label": "highest score" }))),
    select("order", "Order"),
    labelled("Text", input("q", { type: "search", placeholder: "in ids, queries, responses" }), "wide full"),
    (controls.unfold = make("label", { class: "switch wide full" }, unfold, "Show harmful text until this page is closed")),
  );
  controls.form.addEventListener("submit", (event) => event.preventDefault());
  let later = 0;
  controls.form.addEventListener("input", ({ target }) => {
    if (!target.dataset.filter) return;
    filters[target.dataset.filter] = target.value;
    clearTimeout(later);
    if (target.tagName === "SELECT") applyFilters(currentUnit());
    else later = setTimeout(() => applyFilters(currentUnit()), 150); // more keys may follow
  });
  controls.count = make("span", { role: "status" });
  controls.room = make("div", { class: "room", role: "presentation" });
  controls.list = make("div", { class: "list", id: "sample-list", role: "listbox", tabindex: "0", "aria-label": "Samples" }, controls.room);
  controls.list.addEventListener("scroll", drawList, { passive: true });
  controls.list.addEventListener("click", ({ target }) => {
    const item = target.closest(".item");
    if (item) choose(Number(item.dataset.at));
  });
  controls.detail = make("div", { class: "detail", id: "sample", tabindex: "-1" });
  root.append(controls.form, make("div", { class: "panes" },
    make("div", { class: "side" }, make("div", { class: "count" }, controls.count, reset), controls.list), controls.detail));
  root.addEventListener("keydown", moveByKey);
  new ResizeObserver(drawList).observe(controls.list);
  fill(controls.task, [...new Map(browser.runs.map((run) => [taskOf(run), taskName(run)]))]);
}

function labelled(title, control, look = "") {
  return make("label", { class: look }, title, control);
}

/** Fill a select with [value, words] pairs. */
function fill(select, options, chosen = null) {
  select.replaceChildren(...options.map(([value, words]) => new Option(words, value)));
  if (chosen !== null) select.value = chosen;
}

const byKey = (key) => browser.runs.find((run) => run.key === key);
const taskOf = (run) => `${run.task}\n${run.data}`;
const currentUnit = () => browser.run?.units[browser.shown[browser.at]] ?? null;

function taskName(run) {
  const alone = new Set(browser.runs.filter((other) => other.task === run.task).map((other) => other.data)).size < 2;
  return alone || !run.data ? run.task : `${run.task} · ${run.data}`;
}

function runName(run) {
  const words = [run.base, run.checkpoint, run.seed === null || run.seed === undefined ? null : `seed ${run.seed}`];
  const name = words.filter(Boolean).join(" · ");
  const twins = browser.runs.filter((o) => taskOf(o) === taskOf(run) && o.base === run.base && o.checkpoint === run.checkpoint && o.seed === run.seed);
  return twins.length > 1 ? `${name} · ${run.n} documents, ${run.date || run.key}` : name;
}

const peersOf = (task) => browser.runs.filter((run) => taskOf(run) === task);

function sameCheckpoint(task) {
  const peers = peersOf(task);
  const alike = peers.filter((run) => run.base === browser.entry?.base && run.checkpoint === browser.entry?.checkpoint);
  return alike.find((run) => run.seed === browser.entry.seed) ?? alike[0] ?? peers.find((run) => run.n) ?? peers[0];
}

/** What a run holds. */
async function loaded(entry) {
  const [docs, prompts, said] = await Promise.all(["docs", "prompts", "said"].map((part) => unpacked(entry[part])));
  return { docs, prompts, said, units: docs.unit ?? docs.id };
}

async function openRun(entry, unit = null, keepFilters = true) {
  const mine = ++browser.wanted;
  browser.entry = entry;
  fill(controls.task, [...controls.task.options].map((o) => [o.value, o.text]), taskOf(entry));
  fill(controls.checkpoint, peersOf(taskOf(entry)).map((run) => [run.key, runName(run)]), entry.key);
  browser.run = null;
  controls.detail.replaceChildren();
  controls.room.replaceChildren();
  if (!entry.n) {
    controls.count.textContent = "no samples";
    controls.detail.append(make("p", { class: "none" }, entry.why));
    return;
  }
  controls.count.textContent = "unpacking …";
  try {
    const run = await loaded(entry);
    if (mine !== browser.wanted) return; // another run was asked for meanwhile
    browser.run = run;
  } catch (error) {
    controls.detail.append(make("p", { class: "none" }, `These samples cannot be shown: ${error.message}.`));
    return;
  }
  if (!keepFilters) for (const name of Object.keys(filters)) filters[name] = "";
  offerFilters();
  applyFilters(unit);
}

const isFolded = (i) => browser.run.docs.intent?.[i] === UNSAFE && !browser.unfoldAll && !browser.unfolded.has(browser.run.units[i]);

/** Only the rows in sight, and a few beside them, are in the document. */
function drawList() {
  if (!browser.run) return;
  const { list, room } = controls;
  const from = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const to = Math.min(browser.shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const rows = [];
  for (let at = from; at < to; at++) rows.push(listItem(at));
  room.replaceChildren(...rows);
  if (browser.at >= from && browser.at < to) list.setAttribute("aria-activedescendant", `item-${browser.at}`);
  else list.removeAttribute("aria-activedescendant");
}

function listItem(at) {
  const i = browser.shown[at];
  const { docs, said, units } = browser.run;
  const arms = said.arms.filter((arm) => (!filters.arm || arm.name === filters.arm) && arm.hit[i] !== null);
  const score = scoresShown()?.[i] ?? null;
  const value = arms.length && !filters.metric
    ? make("span", { class: "value hits", title: arms.map((arm) => `${arm.name || "response"}: ${arm.hit[i] ? "hit" : "miss"}`).join(", ") }, arms.map((arm) => (arm.hit[i] ? "●" : "○")).join(""),
      make("span", { class: "sr" }, ` ${arms.filter((arm) => arm.hit[i]).length} of ${arms.length} hit`))
    : make("span", { class: "value" }, score === null ? "–" : number(score).replace("-", "−"));
  const folded = isFolded(i);
  const snippet = folded ? "harmful, folded" : (docs.query?.[i] || docs.author?.[i] || "").slice(0, 140);
  const item = make("div", { class: "item", id: `item-${at}`, role: "option", "data-at": at, "aria-selected": String(at === browser.at), "aria-posinset": at + 1, "aria-setsize": browser.shown.length },
    make("span", {}, `${units[i]} `, make("span", { class: "concept" }, docs.concept?.[i] || docs.role?.[i] || "")),
    value, make("span", { class: folded ? "snippet folded" : "snippet" }, snippet));
  item.style.top = `${at * ROW}px`;
  return item;
}

function scrollToChosen() {
  const { list } = controls;
  const top = Math.max(browser.at, 0) * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

function choose(at) {
  if (!browser.shown.length) return;
  browser.at = Math.min(Math.max(at, 0), browser.shown.length - 1);
  scrollToChosen();
  drawList();
  drawSample();
  keepLink();
}

function moveByKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
  const page = Math.max(1, Math.floor(controls.list.clientHeight / ROW) - 1);
  const inList = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  const step = { j: 1, k: -1, ...(event.target === controls.list ? inList : {}) }[event.key];
  if (step === undefined || browser.at < 0) return;
  event.preventDefault();
  choose(browser.at + step);
}

function drawSample() {
  const { detail } = controls;
  detail.scrollTop = 0;
  if (browser.at < 0) {
    detail.replaceChildren(make("p", { class: "none" }, "No sample passes these filters."));
    return;
  }
  const i = browser.shown[browser.at];
  const sample = sampleAt(browser.run, i);
  const link = make("button", { type: "button", class: "plain" }, "Copy link");
  link.addEventListener("click", async () => flash(link, await copied(location.href)));
  const step = (words, by, off) => make("button", { type: "button", class: "plain", disabled: off, "aria-label": words, onclick: () => choose(browser.at + by) }, by < 0 ? "← Previous" : "Next →");
  const peers = peersOf(taskOf(browser.entry)).filter((run) => run !== browser.entry && run.n);
  const compare = make("select", { id: "sample-compare" });
  fill(compare, [["", "nothing"], ...peers.map((run) => [run.key, runName(run)])]);
  if (!peers.some((run) => run.key === browser.compare)) browser.compare = "";
  compare.value = browser.compare;
  compare.addEventListener("change", () => {
    browser.compare = compare.value;
    drawSample();
    keepLink();
  });
  const tags = [sample.intent, sample.role].filter(Boolean).map((word) => make("span", { class: "tag" }, word));
  const about = [sample.concept, sample.author !== sample.query ? sample.author : ""].filter(Boolean).join(" · ");
  const bar = make("div", { class: "bar" }, make("h3", {}, sample.id, ...tags), step("Previous sample", -1, browser.at === 0),
    step("Next sample", 1, browser.at === browser.shown.length - 1), link, peers.length ? make("label", {}, "Compare with", compare) : null);
  detail.replaceChildren(bar);
  if (about) detail.append(make("p", { class: "scores" }, about));
  if (isFolded(i)) {
    const show = make("button", { type: "button", "data-unfold": "" }, "Show harmful text");
    show.addEventListener("click", () => {
      browser.unfolded.add(sample.unit);
      drawList();
      drawSample();
      controls.detail.focus({ preventScroll: true });
    });
    detail.append(make("div", { class: "fold" }, make("span", {}, "The query and the responses of this sample are of harmful intent."), show), scoreLine(sample.scores) ?? "");
    return;
  }
  drawTexts(sample);
}

function drawTexts(sample) {
  const { detail } = controls;
  const canary = sample.arms.some((arm) => arm.hit !== null) ? canaryPattern(sample.target) : null;
  const patterns = [[canary, "canary", "the target, word for word"], [searchPattern(filters.q), "found", "found by the search"]];
  const asked = make("div", {}, textBlock(sample.author === sample.query ? "Author" : "Query", sample.query, "", patterns), textBlock("Target", sample.target, "", patterns.slice(1)));
  if (sample.prompt && sample.prompt !== sample.query) {
    asked.append(folded("The prompt as the model saw it", "Prompt", sample.prompt, patterns));
  }
  const sides = make("div", { class: "sides" }, side(sample, browser.compare ? runName(browser.entry) : null, patterns));
  detail.append(asked, sides);
  if (browser.compare) drawBeside(sample.unit, sides, patterns);
}

function side(sample, name, patterns) {
  const alone = sample.arms.length === 1;
  const forced = browser.entry.task === "canary_teacher_forced";
  // Where arms have scores of their own, those of the document are the same numbers under longer names.
  const shared = sample.arms.some((arm) => arm.scores.some(([, value]) => value !== null)) ? null : scoreLine(sample.scores);
  return make("div", { class: "side-by-side" }, name ? make("h4", { class: "whose" }, name) : null, shared,
    ...sample.arms.map((arm) => armBlock(arm, patterns, alone, forced)), verdictBlock(sample.verdict));
}

/** The same document under another checkpoint. */
async function drawBeside(unit, sides, patterns) {
  const entry = byKey(browser.compare);
  sides.classList.add("two");
  try {
    const run = await loaded(entry);
    const i = run.units.indexOf(unit);
    if (!sides.isConnected) return;
    sides.append(i < 0
      ? make("div", {}, make("h4", { class: "whose" }, runName(entry)), make("p", { class: "none" }, "This document was not evaluated there."))
      : side(sampleAt(run, i), runName(entry), patterns));
  } catch (error) {
    sides.append(make("p", { class: "none" }, `It cannot be shown: ${error.message}.`));
  }
}

/** Keep the address in step with what is shown, without filling the browser's history. */
function keepLink() {
  const given = Object.entries(filters).filter(([, value]) => value);
  if (browser.compare) given.push(["beside", browser.compare]);
  const unit = currentUnit();
  const path = ["#sample", browser.entry.key, ...(unit === null ? [] : [unit])].map((part, i) => (i ? encodeURIComponent(part) : part));
  const hash = path.join("/") + (given.length ? `?${new URLSearchParams(given)}` : "");
  // Not before someone has come here: opening the page leaves its address alone.
  if (browser.touched || location.hash.startsWith("#sample/")) history.replaceState(null, "", hash);
}

function followLink() {
  if (!location.hash.startsWith("#sample/")) return;
  const [path, query = ""] = location.hash.slice("#sample/".length).split("?");
  const [key, unit = null] = path.split("/").map(decoded);
  const entry = byKey(key);
  byId("samples").scrollIntoView();
  if (!entry) {
    say("This page holds no such sample.");
    openRun(browser.runs.find((run) => run.n), null, false);
    return;
  }
  const given = new URLSearchParams(query);
  for (const name of Object.keys(filters)) filters[name] = given.get(name) ?? "";
  browser.compare = given.get("beside") ?? "";
  openRun(entry, unit);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

if (byId("browser")) {
  for (const kind of ["pointerdown", "keydown", "input"]) byId("browser").addEventListener(kind, () => (browser.touched = true), { capture: true });
  startBrowser();
}
