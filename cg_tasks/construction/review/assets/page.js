// The page: one item at a time beside the list of all. Texts become text nodes, never markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const sheet = JSON.parse($("sheet").textContent);
  const marks = openMarks(sheet, () => { refreshAll(); showItem(); }, (words) => { $("warning").textContent = words; $("warning").hidden = false; });
  const entries = [];
  const opened = new Set();  // harmful fields that are open, of the item that is shown
  let toastTimer = 0;

  const item = () => sheet.items[marks.get("at")];
  const words = (text) => (text.match(/\S+/g) || []).length;

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function say(text, isShown = true) {
    $("status").textContent = text;
    if (!isShown) return;
    $("toast").textContent = text;
    $("toast").hidden = false;
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => { $("toast").hidden = true; }, 6000);
  }

  // The list
  function buildList() {
    const column = sheet.fields.findIndex((field) => field.name === sheet.overview && field.open);
    const list = document.createDocumentFragment();
    sheet.items.forEach((each, index) => {
      const line = make("li");
      const button = make("button", "entry");
      button.type = "button";
      const name = make("bdi", "name", (column < 0 ? each.id : each.fields[column]).slice(0, 120));
      const mark = make("span", "label");
      button.append(make("span", "number", String(index + 1)), name, mark);
      button.addEventListener("click", () => { go(index); $("item").focus({ preventScroll: true }); });
      line.append(button);
      list.append(line);
      entries.push({ line, button, mark });
    });
    $("overview").append(list);
  }

  function refreshEntry(index) {
    const { line, button, mark } = entries[index];
    const { label, note } = marks.of(sheet.items[index].id);
    mark.textContent = (label || "") + (note ? " ✎" : "");
    button.dataset.label = label || "";
    const filter = $("filter").value;
    line.hidden = !(filter === "all" || (filter === "unmarked" ? label === null : filter === "note" ? note !== "" : label === filter));
  }

  function refreshCount() {
    const done = marks.marked();
    $("progress").value = done;
    $("count").textContent = `${done} of ${sheet.items.length} marked${marks.get("unsaved") ? " · not saved to a file" : ""}`;
    $("none").hidden = entries.some(({ line }) => !line.hidden);
  }

  function refreshAll() {
    entries.forEach((_, index) => refreshEntry(index));
    refreshCount();
  }

  // The item
  function showItem() {
    const at = marks.get("at");
    const each = item();
    $("position").textContent = `Item ${at + 1} of ${sheet.items.length}`;
    $("id").textContent = each.id;
    $("fields").replaceChildren(...sheet.fields.map((field, i) => fieldElement(field, each.fields[i])));
    $("note").value = marks.of(each.id).note;
    showMark();
    entries.forEach(({ button }, index) => {
      if (index === at) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
    if (entries[at].button.offsetParent) keepInSight($("overview"), entries[at].button);
  }

  // Scrolls the list alone, never the page.
  function keepInSight(list, button) {
    const [frame, box] = [list.getBoundingClientRect(), button.getBoundingClientRect()];
    if (box.top < frame.top) list.scrollTop -= frame.top - box.top;
    else if (box.bottom > frame.bottom) list.scrollTop += box.bottom - frame.bottom;
  }

  function fieldElement(field, text) {
    const section = make("section", "field");
    section.dataset.side = field.name.split("_")[0];
    section.append(make("h3", "", field.caption));
    if (!field.open && !opened.has(field.name) && !marks.get("show")) {
      const show = make("button", "fold");
      show.type = "button";
      show.setAttribute("aria-expanded", "false");
      show.append(make("span", "", `Harmful text, ${words(text).toLocaleString("en")} words: show `), make("kbd", "", "v"));
      show.addEventListener("click", () => {
        opened.add(field.name);
        const body = fieldElement(field, text);
        section.replaceWith(body);
        body.querySelector(".text").focus({ preventScroll: true });
      });
      section.append(show);
      return section;
    }
    const body = make("div", "text", text);
    body.dir = "auto";
    body.tabIndex = 0;  // so that keys can scroll a long one
    body.setAttribute("role", "region");
    body.setAttribute("aria-label", field.caption);
    if (!field.open) section.classList.add("harmful");
    section.append(body);
    return section;
  }

  function showMark() {
    const { label } = marks.of(item().id);
    for (const button of document.querySelectorAll(".mark")) {
      button.setAttribute("aria-pressed", String(button.dataset.label === label));
    }
  }

  function go(index) {
    if (!sheet.items[index]) return say(index < 0 ? "This is the first item." : "This is the last item.");
    opened.clear();
    marks.set("at", index);
    showItem();
    const top = $("position").getBoundingClientRect().top;
    if (top < 0 || top > innerHeight / 2) $("position").scrollIntoView();
    const { label } = marks.of(item().id);
    say(`Item ${index + 1} of ${sheet.items.length}, ${label || "unmarked"}`, false);
  }

  function goUnmarked() {
    const n = sheet.items.length;
    const at = marks.get("at");
    for (let step = 1; step <= n; step += 1) {
      const index = (at + step) % n;
      if (marks.of(sheet.items[index].id).label === null) return go(index);
    }
    say("All items are marked: press Save, and send the file back.");
  }

  function mark(label) {
    marks.label(item().id, label);
    refreshEntry(marks.get("at"));
    refreshCount();
    showMark();
    const left = sheet.items.length - marks.marked();
    if (label !== null && left === 0) say("All items are marked: press Save, and send the file back.");
    else say(`${label || "unmarked"}. ${left} left.`, false);
    if (label !== null && left > 0 && marks.get("advance")) go((marks.get("at") + 1) % sheet.items.length);
  }

  function toggleHarmful() {
    const harmful = sheet.fields.filter((field) => !field.open).map((field) => field.name);
    if (marks.get("show")) return say("“Always show harmful text” is on.");
    const all = harmful.every((name) => opened.has(name));
    opened.clear();
    if (!all) harmful.forEach((name) => opened.add(name));
    showItem();
  }

  // Files
  function save() {
    const name = `${sheet.annotator}.marks.json`;
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([marks.asFile()], { type: "application/json" }));
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    marks.set("unsaved", false);
    refreshCount();
    const left = sheet.items.length - marks.marked();
    say(left ? `Saved ${name} with ${left} still unmarked: the import takes whole sheets only.` : `Saved ${name}: send it back.`);
  }

  async function load(file) {
    const wrong = marks.takeUp(await file.text());
    say(wrong ? `${file.name} cannot be loaded: ${wrong}.` : `Loaded ${file.name}.`);
    if (wrong) return;
    refreshAll();
    showItem();
  }

  // Keys and buttons
  const KEYS = {
    n: () => go(marks.get("at") + 1), ArrowRight: () => go(marks.get("at") + 1),
    p: () => go(marks.get("at") - 1), ArrowLeft: () => go(marks.get("at") - 1),
    j: goUnmarked, x: () => mark(null), v: toggleHarmful, s: save,
    e: () => $("note").focus(), "?": () => $("help").showModal(),
  };
  for (const label of sheet.labels) KEYS[label[0]] = () => mark(label);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || $("help").open) return;
    const target = event.target;
    if (target === $("note") || target.tagName === "SELECT") {
      if (event.key === "Escape") target.blur();
      return;
    }
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (!Object.hasOwn(KEYS, key)) return;
    event.preventDefault();
    if (event.repeat && !"np".includes(key) && !key.startsWith("Arrow")) return;
    KEYS[key]();
  });
  for (const button of document.querySelectorAll(".mark")) button.addEventListener("click", () => mark(button.dataset.label));
  $("previous").addEventListener("click", KEYS.p);
  $("next").addEventListener("click", KEYS.n);
  $("unmarked").addEventListener("click", goUnmarked);
  $("save").addEventListener("click", save);
  $("load").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => { if ($("file").files[0]) load($("file").files[0]); $("file").value = ""; });
  $("help-open").addEventListener("click", KEYS["?"]);
  $("filter").addEventListener("change", refreshAll);
  $("note").addEventListener("input", () => {
    marks.note(item().id, $("note").value);
    refreshEntry(marks.get("at"));
    refreshCount();
  });
  for (const name of ["show", "advance"]) {
    $(name).checked = Boolean(marks.get(name));
    $(name).addEventListener("change", () => { marks.set(name, $(name).checked); showItem(); });
  }
  $("guideline").open = marks.get("guideline") !== false;
  $("guideline").addEventListener("toggle", () => marks.set("guideline", $("guideline").open));

  const wide = matchMedia("(min-width: 60rem)");
  const fit = () => { $("list").open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
  buildList();
  refreshAll();
  showItem();
})();
