"use strict";
// What the whole page needs: packed data, copying, figures in large, and where the reader is. No text is ever put in as HTML.

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const KEPT_CHUNKS = 12;
const chunks = new Map();
const parsed = new Promise((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", done, { once: true });
});

/** A packed chunk of the page, unpacked when first asked for; the least recently used ones are forgotten again. */
function unpacked(name) {
  const found = chunks.get(name) ?? unpack(name);
  chunks.delete(name);
  chunks.set(name, found);
  found.catch(() => chunks.delete(name));
  if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
  return found;
}

async function unpack(name) {
  if (!byId(`chunk-${name}`)) await parsed; // the page is still coming in
  const holder = byId(`chunk-${name}`);
  if (!holder) throw new Error("a part of this page is missing: was the file cut off?");
  if (!("DecompressionStream" in window)) throw new Error("this browser is too old to unpack the samples");
  const packed = atob(holder.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

function say(words) {
  byId("said").textContent = words;
}

/** Copy a text; where the clipboard is closed to pages, through a selection. Says whether it worked. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "sr", "aria-hidden": "true" });
    const before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus({ preventScroll: true });
    return done;
  }
}

async function flash(button, done) {
  const name = button.dataset.name ?? button.textContent;
  button.dataset.name = name;
  button.textContent = done ? "Copied" : "Failed";
  say(done ? `Copied: ${name}` : "The browser did not allow copying");
  setTimeout(() => (button.textContent = name), 1200);
}

document.documentElement.classList.add("scripted");

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.dataset.copy) {
    const tables = await unpacked("tables");
    flash(button, await copied(tables[button.dataset.table][button.dataset.copy]));
  } else if (button.classList.contains("enlarge")) {
    const small = button.querySelector("img");
    const large = byId("large").querySelector("img");
    large.src = small.src;
    large.alt = small.alt;
    byId("large").showModal();
  }
});
byId("large").addEventListener("click", (event) => {
  if (event.target === byId("large")) byId("large").close(); // beside the figure
});

/** Scroll the navigation, and nothing else, to a link of it. */
function keepInSight(link) {
  for (const box of [link.closest("nav"), link.closest(".all")]) {
    const [outer, inner] = [box.getBoundingClientRect(), link.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 3;
    if (inner.left < outer.left || inner.right > outer.right) box.scrollLeft += inner.left - outer.left - 24;
  }
}

// Which section is being read.
const links = new Map([...document.querySelectorAll("nav.sections a")].map((a) => [a.hash.slice(1), a]));
const visible = new Set();
const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) visible[isIntersecting ? "add" : "delete"](target.id);
    const current = [...links.keys()].find((id) => visible.has(id));
    for (const [id, link] of links) {
      if (id !== current) link.removeAttribute("aria-current");
      else if (!link.hasAttribute("aria-current")) {
        link.setAttribute("aria-current", "true");
        keepInSight(link);
      }
    }
  },
  { rootMargin: "-15% 0px -65% 0px" },
);
for (const id of links.keys()) if (byId(id)) watcher.observe(byId(id));

// On paper nothing can be opened.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("main > section:not(#samples) details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
