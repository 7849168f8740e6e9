"use strict";
// The marks: kept in this browser under the sheet's hash and the annotator's name, saved to a file and loaded from one.
function openMarks(sheet, onChange, onTrouble) {
  const KEY = `conceptguard-review:${sheet.sheet_sha256}:${sheet.annotator}`;
  const ids = new Set(sheet.items.map((item) => item.id));
  let state = { marks: {}, unsaved: false, at: 0, show: false, advance: false, guideline: true };
  let waiting = 0;

  function isMark(mark) {
    const label = mark && mark.label;
    return mark && typeof mark === "object" && (label === null || sheet.labels.includes(label)) && typeof mark.note === "string";
  }

  function read(text) {
    try {
      const kept = JSON.parse(text);
      if (!kept || typeof kept !== "object" || typeof kept.marks !== "object") return;
      const marks = Object.entries(kept.marks || {}).filter(([id, mark]) => ids.has(id) && isMark(mark));
      state = { ...state, ...kept, marks: withoutPrototype(marks) };
      if (!Number.isInteger(state.at) || !sheet.items[state.at]) state.at = 0;
    } catch { /* not ours: start afresh */ }
  }

  // Ids are data: one may be called __proto__.
  function withoutPrototype(entries) {
    const marks = Object.create(null);
    for (const [id, mark] of entries) marks[id] = mark;
    return marks;
  }

  function keep() {
    clearTimeout(waiting);
    waiting = 0;
    try {
      localStorage.setItem(KEY, JSON.stringify(state));
    } catch {
      onTrouble("This browser keeps no marks for this page: press Save before you close it.");
    }
  }

  function of(id) {
    return state.marks[id] || { label: null, note: "", marked_at: null };
  }

  function put(id, change) {
    const mark = { ...of(id), ...change, marked_at: new Date().toISOString() };
    if (mark.label === null && mark.note === "") delete state.marks[id];
    else state.marks[id] = mark;
    state.unsaved = true;
  }

  function asFile() {
    const marks = sheet.items.filter((item) => state.marks[item.id]).map((item) => ({ id: item.id, ...of(item.id) }));
    return JSON.stringify({ sheet_sha256: sheet.sheet_sha256, annotator: sheet.annotator, marks }, null, 1) + "\n";
  }

  // Takes up a saved file: its marks replace those of the same items. Gives what is wrong with it, or null.
  function takeUp(text) {
    let file;
    try { file = JSON.parse(text); } catch { return "not JSON, or cut off"; }
    if (!file || !Array.isArray(file.marks)) return "it holds no marks";
    if (file.sheet_sha256 !== sheet.sheet_sha256) return "it is of another sheet";
    if (file.annotator !== sheet.annotator) return "it is another annotator's";
    if (!file.marks.every((mark) => isMark(mark) && ids.has(mark.id))) return "it holds marks that are none of this sheet's";
    for (const { id, label, note, marked_at } of file.marks) state.marks[id] = { label, note, marked_at };
    state.unsaved = true;
    keep();
    return null;
  }

  let kept = null;
  try { kept = localStorage.getItem(KEY); } catch { /* keep() says so */ }
  state.marks = withoutPrototype([]);
  if (kept !== null) read(kept);
  keep();
  addEventListener("storage", (event) => {  // the same sheet in another tab
    if (event.key !== KEY || event.newValue === null) return;
    const at = state.at;
    read(event.newValue);
    state.at = at;
    onChange();
  });
  addEventListener("pagehide", () => { if (waiting) keep(); });
  addEventListener("beforeunload", (event) => {
    if (!state.unsaved) return;
    event.preventDefault();
    event.returnValue = "";
  });

  return {
    of, asFile, takeUp,
    get: (name) => state[name],
    set(name, value) { state[name] = value; keep(); },
    label(id, label) { put(id, { label }); keep(); },
    note(id, note) {
      put(id, { note });
      clearTimeout(waiting);
      waiting = setTimeout(keep, 300);
    },
    marked: () => sheet.items.filter((item) => of(item.id).label !== null).length,
  };
}
