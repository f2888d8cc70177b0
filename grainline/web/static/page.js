"use strict";
// The page of `grainline serve`. What comes from texts, files or answers is set as text, never as HTML.

const FOR = [230, 97, 1], AGAINST = [33, 102, 172], STRENGTH = 0.7; // as in report/heatmap.py
const LARGE = 2048; // of the one that is shown large
const COARSE = matchMedia("(pointer: coarse)").matches; // fingers do not hover, and have no Ctrl
const NARROW = matchMedia("(max-width: 40rem)").matches; // as in style.css
const SIDE = 768; // of the images, sharp in a card on a dense screen
const FINE = 192; // side of a heat map in pixels, before the browser scales it
const PAUSE = 250; // milliseconds without a key until sentences are counted

const VERDICTS = { "shows": ["✓", "shows it", "yes"], "cannot tell": ["?", "cannot tell", "open"],
  "does not": ["✗", "does not", "no"] };

const at = (id) => document.getElementById(id);
const text = at("text"), hits = at("hits"), status = at("status"), problem = at("problem");
const images = new Map(); // images sent as a query, by the name in the address
let limits = { characters: 20000, bytes: 16 * 2 ** 20 };
let canShow = false; // whether the model can show where a sentence lies
let running = new AbortController();
let again = null; // what the button of a complaint does

class Failure extends Error {}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 404)
    throw new Failure("That image is not in this index. If it was a file of yours, choose it again.");
  throw new Failure(response.status === 503 && /try again/.test(answer.error)
    ? "The server is busy just now. Please try again in a moment."
    : `That did not work: ${answer.error || `status ${response.status}`}.`);
}

const post = (path, values, signal) => ask(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values), signal,
});

// Searching

function remember(url, push) {
  if (push && location.hash !== url) history.pushState({}, "", url);
}

function searchText(push = true) {
  const query = text.value.trim();
  if (!query) return complain("Write a description first, or choose an image.", null);
  if (query.length > limits.characters)
    return complain(`The text has ${query.length} characters; at most ${limits.characters} are allowed.`, null);
  remember(`#q=${encodeURIComponent(query)}`, push);
  current = base();
  document.title = `${query.slice(0, 60)} - grainline`;
  at("query").hidden = true;
  run((signal) => post("api/search", { text: query }, signal), query, () => searchText(false));
}

async function searchImage(file) {
  if (!file) return;
  if (!isImage(file)) return complain(`${file.name} is no image.`, null);
  if (file.size > limits.bytes)
    return complain(`${file.name} has ${size(file.size)}; at most ${size(limits.bytes)} are allowed.`, null);
  const name = await digest(file);
  images.set(name, file);
  searchLike(name);
}

// By an image: one that was sent in this tab, or one of the index. Its name is that of its bytes, so the address
// finds an image of the index in any tab, and after the server was started anew.
function searchLike(name, push = true) {
  const file = images.get(name);
  if (!file && !NAME.test(name)) return complain("That image is no longer here; choose it again.", null);
  remember(`#image=${name}`, push);
  current = base();
  const preview = at("query"), thumb = preview.firstElementChild;
  URL.revokeObjectURL(thumb.src);
  thumb.hidden = false;
  thumb.onerror = () => { thumb.hidden = true; }; // HEIC: few browsers show it
  thumb.src = file ? URL.createObjectURL(file) : `api/image/${name}?side=${SIDE}`;
  const say = () => {
    const path = (answered.get(name) ?? samples.get(name))?.[0].path;
    preview.lastElementChild.textContent = `Images like ${file ? file.name || "the one you pasted" : path ?? "this one"}`;
    document.title = `${preview.lastElementChild.textContent} - grainline`;
  };
  say();
  preview.hidden = false;
  if (push) followDetail(); // closes it
  const body = new FormData();
  body.append(...(file ? ["image", file] : ["name", name]));
  const search = (signal) => ask("api/search/image", { method: "POST", body, signal });
  run(search, null, () => searchLike(name, false)).then(() => { if (base() === `#image=${name}`) say(); });
}

// The name that the image has in an index; pages that came over plain http from elsewhere cannot compute it.
async function digest(file) {
  const content = crypto.subtle && await file.arrayBuffer().catch(() => null); // null: the server will say why
  if (!content) return String(Date.now());
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return [...bytes.slice(0, 12)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const NAME = /^[0-9a-f]{24}$/;

// Browsers know no type of HEIC; the server decides.
const isImage = (file) => file.type.startsWith("image/") || /\.(heic|heif|avif)$/i.test(file.name);
const size = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

async function run(search, query, retry) {
  running.abort();
  at("start").hidden = true;
  const controller = running = new AbortController();
  problem.hidden = true;
  hits.setAttribute("aria-busy", "true");
  status.textContent = "Searching …";
  try {
    show(await search(controller.signal), query);
  } catch (error) {
    if (controller.signal.aborted) return;
    complain(error instanceof Failure ? error.message : "The page failed at this answer.", retry);
    if (!(error instanceof Failure)) throw error;
  } finally {
    if (controller === running) hits.removeAttribute("aria-busy");
  }
}

function complain(message, retry) {
  again = retry;
  status.textContent = "";
  problem.firstElementChild.textContent = message;
  problem.lastElementChild.hidden = !retry;
  problem.hidden = false;
}

problem.lastElementChild.addEventListener("click", () => again());

// Showing

function show(answer, query) {
  const count = answer.hits.length, number = (match) => answer.hits.filter((hit) => hit.match === match).length;
  const sure = number("sure"), part = number("in part");
  if (!count) status.textContent = "Nothing was found.";
  else if (answer.match === "none") status.textContent = "No sure match. The nearest images are:";
  else {
    const matches = [[sure, sure === count ? "all of them sure" : `${sure} of them sure`], [part, `${part} in part`]];
    const words = matches.filter(([some]) => some).map(([, said]) => said).join(", ");
    status.textContent = `${plural(count, "image")}, best first; ${words}.`;
  }
  document.body.classList.add("asked"); // on a phone the form takes less room
  if (NARROW) document.querySelector("footer").prepend(at("validated"));
  at("notes").replaceChildren(...answer.notes.map((note) => element("li", note)));
  at("notes").hidden = !answer.notes.length;
  at("legend").hidden = !(canShow && query && count);
  hits.replaceChildren(...answer.hits.map((hit, i) => card(hit, i, query)));
  answered = new Map(answer.hits.map((hit) => [hit.name, [hit, query]]));
  followDetail();
}

// One image, large. The address names it, so that the back button closes it and a link opens it.

const detail = at("detail"), SHOW = /[#&]show=([0-9a-f]{24})$/;
let answered = new Map(), samples = new Map(); // [hit, query] by the name of the image
let current = ""; // the part of the address whose answer is shown
const base = () => location.hash.replace(SHOW, "");
const place_of = (name) => `${base()}${base() ? "&" : "#"}show=${name}`;

function openDetail(hit, query) {
  history.pushState({ ...history.state, detail: true }, "", place_of(hit.name));
  followDetail();
}

function followDetail() {
  const name = location.hash.match(SHOW)?.[1];
  if (!name) { if (detail.open) detail.close(); return; }
  const unknown = { name, path: "Image of this index", image: `/api/image/${name}`, sentences: [] };
  const [hit, query] = answered.get(name) ?? samples.get(name) ?? [unknown, null];
  const item = card(hit, 0, query, true);
  item.className = "";
  at("large").replaceChildren(item);
  if (!detail.open) detail.showModal();
}

function closeDetail() {
  if (history.state?.detail) { history.back(); return; }
  history.replaceState(history.state, "", base() || location.pathname);
  detail.close();
}

detail.addEventListener("cancel", (event) => { event.preventDefault(); closeDetail(); });
detail.addEventListener("click", (event) => { if (event.target === detail) closeDetail(); });
at("close").addEventListener("click", closeDetail);
detail.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const names = [...(answered.size ? answered : samples).keys()];
  const name = names[names.indexOf(location.hash.match(SHOW)?.[1]) + step];
  if (!name) return;
  history.replaceState(history.state, "", place_of(name));
  followDetail();
});

function showStart(index) {
  samples = new Map(index.samples.map((one) => [one.name, [{ ...one, sentences: [] }, null]]));
  at("samples").replaceChildren(...index.samples.map((one) => {
    const item = document.createElement("li"), button = document.createElement("button"), image = new Image();
    Object.assign(button, { type: "button", className: "sample" });
    Object.assign(image, { src: `${one.image}?side=256`, alt: one.path, loading: "lazy" });
    button.append(image);
    button.addEventListener("click", () => openDetail(...samples.get(one.name)));
    item.append(button);
    return item;
  }));
  at("tries").replaceChildren(...index.examples.map((example) => {
    const button = element("button", example);
    Object.assign(button, { type: "button", className: "try" });
    button.addEventListener("click", () => { text.value = example; counted(); searchText(); });
    return button;
  }));
  if (index.examples.length) at("tries").prepend(element("span", "Try:"));
}

function card(hit, number, query, large = false) {
  const item = at("hit").content.cloneNode(true).firstElementChild;
  const find = (selector) => item.querySelector(selector);
  const image = find("img"), where = find(".where"), heat = new Heat(item, hit, query);
  image.src = `${hit.image}?side=${large ? LARGE : SIDE}`;
  image.alt = hit.path;
  const frame = find(".frame");
  if (large) {
    const plain = document.createElement("div");
    plain.className = "frame";
    plain.append(...frame.childNodes);
    frame.replaceWith(plain);
    const like = element("button", "Images like this");
    Object.assign(like, { type: "button", className: "like" });
    like.addEventListener("click", () => searchLike(hit.name));
    item.firstElementChild.append(like);
  } else {
    frame.setAttribute("aria-label", `Show ${hit.path} larger`);
    frame.addEventListener("click", () => openDetail(hit, query));
  }
  find(".facts").hidden = hit.score === undefined; // an image of the start, that nothing was asked about
  image.addEventListener("error", () => heat.say("This image cannot be shown: its file has changed or is gone."));
  find("h2").textContent = hit.path;
  if (hit.score === undefined) { where.hidden = true; return item; }
  const match = find(".match");
  match.textContent = { sure: "✓ sure match", "in part": "◐ match in part", none: "~ no sure match" }[hit.match];
  match.classList.add({ sure: "yes", "in part": "part", none: "no" }[hit.match]);
  match.title = query
    ? `A query that matches nothing scores this high ${percent(hit.p)} of the time (a match: below 5 %).`
    : `${percent(hit.p)} of the images here have another one as near.`;
  find(".score").textContent = `score ${hit.score.toFixed(3)}`;
  where.id = `where-${large ? "large" : number}`;
  where.hidden = !(canShow && hit.sentences.length);
  heat.rest();
  find(".sentences").append(...hit.sentences.map((sentence, i) => line(sentence, i, heat, where.id)));
  return item;
}

function line(sentence, number, heat, describedBy) {
  const item = at("sentence").content.cloneNode(true).firstElementChild, button = item.firstElementChild;
  const [mark, verdict, kind] = VERDICTS[sentence.verdict];
  item.classList.add(kind);
  item.querySelector(".mark").textContent = mark;
  item.querySelector(".said").textContent = sentence.text;
  item.querySelector(".verdict").textContent = `${verdict}\nscore ${sentence.score.toFixed(2)}`;
  button.title = `${percent(sentence.p)} of the sentences about other images do as well in a best hit`;
  if (!canShow) return item;
  button.setAttribute("aria-describedby", describedBy);
  for (const event of ["mouseenter", "focus", "click"]) button.addEventListener(event, () => heat.over(button, number));
  button.addEventListener("mouseleave", () => heat.off(button, document.activeElement));
  button.addEventListener("blur", () => heat.off(button, null));
  return item;
}

// Heat of one card: fetched at the first hover or focus of a sentence, painted over the image.
class Heat {
  constructor(card, hit, query) {
    Object.assign(this, { card, hit, query, on: null, number: -1, maps: null });
    this.image = card.querySelector("img");
    this.canvas = card.querySelector("canvas");
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.canvas.parentElement);
  }

  say(message) {
    const where = this.card.querySelector(".where");
    where.textContent = message;
    where.hidden = false;
  }

  rest() {
    this.say(`${COARSE ? "Tap" : "Point at"} a sentence to see where it shows.`);
    this.card.querySelector(".where").hidden = !(canShow && this.hit.sentences.length);
  }

  async over(button, number) {
    this.on?.classList.remove("on");
    Object.assign(this, { on: button, number });
    button.classList.add("on");
    this.maps ??= post("api/heat", { image: this.hit.name, text: this.query });
    try {
      this.heat = await this.maps;
      await this.image.decode();
      this.draw();
    } catch (error) {
      this.maps = null; // the next hover fetches again
      if (this.on === button) this.say(error instanceof Failure ? error.message : "This image cannot be shown.");
    }
  }

  off(button, focused) {
    if (this.on !== button || focused === button) return;
    const other = this.card.contains(focused) ? focused : null;
    button.classList.remove("on");
    this.on = null;
    this.canvas.hidden = true;
    this.rest();
    if (other?.closest(".sentences")) other.dispatchEvent(new Event("focus")); // back to the one with the focus
  }

  draw() {
    if (!this.on || !this.heat) return;
    const { image, canvas, heat } = this, map = heat.maps[this.number];
    const frame = canvas.parentElement, dense = window.devicePixelRatio || 1;
    const width = canvas.width = Math.round(frame.clientWidth * dense);
    const height = canvas.height = Math.round(frame.clientHeight * dense);
    const zoom = Math.min(width / image.naturalWidth, height / image.naturalHeight);
    const wide = image.naturalWidth * zoom, tall = image.naturalHeight * zoom;
    const left = (width - wide) / 2, top = (height - tall) / 2;
    const paper = canvas.getContext("2d");
    paper.drawImage(image, left, top, wide, tall);
    const short = Math.min(wide, tall), whole = heat.part === "whole";
    const w = whole ? wide : short, h = whole ? tall : short;
    paper.imageSmoothingQuality = "high";
    paper.drawImage(coloured(heat, map), left + (wide - w) / 2, top + (tall - h) / 2, w, h);
    canvas.hidden = false;
    this.say(where(heat, map));
  }
}

// Heat is in units in which 1 is what few other texts reach; below `floor` nothing is drawn.
function coloured(heat, { values, limit }) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = FINE;
  const paper = canvas.getContext("2d"), image = paper.createImageData(FINE, FINE);
  for (let y = 0; y < FINE; y++)
    for (let x = 0; x < FINE; x++) {
      const value = between(heat, values, (x + 0.5) / FINE, (y + 0.5) / FINE) * limit / 127;
      const strength = Math.min(Math.max((Math.abs(value) - heat.floor) / (heat.full - heat.floor), 0), 1);
      image.data.set([...(value < 0 ? AGAINST : FOR), 255 * STRENGTH * strength], 4 * (y * FINE + x));
    }
  paper.putImageData(image, 0, 0);
  return canvas;
}

// Bilinear, as nn/upsample.py: a value stands at the centre of its cell, and is continued at the rim.
function between({ rows, columns }, values, right, down) {
  const place = (share, cells) => Math.min(Math.max(share * cells - 0.5, 0), cells - 1);
  const x = place(right, columns), y = place(down, rows), x0 = Math.floor(x), y0 = Math.floor(y);
  const x1 = Math.min(x0 + 1, columns - 1), y1 = Math.min(y0 + 1, rows - 1);
  const along = (row) => values[row * columns + x0] * (1 - x + x0) + values[row * columns + x1] * (x - x0);
  return along(y0) * (1 - y + y0) + along(y1) * (y - y0);
}

function where(heat, { values, limit }) {
  if (Math.max(...values) * limit / 127 >= heat.floor) return `Strongest ${place(heat, values)}.`;
  if (-Math.min(...values) * limit / 127 < heat.floor) return "No contrast: other texts show as much here.";
  return `Less than other texts ${place(heat, values.map((value) => -value))}.`;
}

function place({ rows, columns }, values) {
  const best = values.indexOf(Math.max(...values)), third = (share) => Math.min(2, Math.floor(share * 3));
  const down = third((Math.floor(best / columns) + 0.5) / rows), right = third((best % columns + 0.5) / columns);
  if (down === 1 && right === 1) return "in the middle";
  return `at the ${[["top", "", "bottom"][down], ["left", "", "right"][right]].filter(Boolean).join(" ")}`;
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

function element(tag, content) {
  const node = document.createElement(tag);
  node.textContent = content;
  return node;
}

// Events

at("ask").addEventListener("submit", (event) => { event.preventDefault(); searchText(); });
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); searchText(); }
});
at("file").addEventListener("change", (event) => {
  searchImage(event.target.files[0]);
  event.target.value = ""; // the same file may be chosen again
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) { event.preventDefault(); searchImage(file); }
});
const carries = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", (event) => {
  if (carries(event)) { event.preventDefault(); at("drop").hidden = false; }
});
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) at("drop").hidden = true; });
document.addEventListener("drop", (event) => {
  at("drop").hidden = true;
  if (carries(event)) { event.preventDefault(); searchImage(event.dataTransfer.files[0]); }
});
at("skip").addEventListener("click", (event) => { event.preventDefault(); hits.focus(); });

let timer = 0;
function counted() {
  clearTimeout(timer);
  const now = text.value;
  if (!now.trim()) { at("count").textContent = ""; return; }
  timer = setTimeout(async () => {
    const answer = await post("api/sentences", { text: now }).catch(() => null);
    if (answer && text.value === now) at("count").textContent = plural(answer.sentences.length, "sentence");
  }, PAUSE);
}
text.addEventListener("input", counted);

// The address says what is searched, so that it can be kept and the back button works.
function follow() {
  const hash = base();
  if (hash === current && hash) { followDetail(); return; }
  current = hash;
  if (hash.startsWith("#q=")) {
    let query;
    try { query = decodeURIComponent(hash.slice(3)); } catch { query = hash.slice(3); }
    text.value = query;
    counted();
    searchText(false);
  } else if (hash.startsWith("#image=")) {
    searchLike(hash.slice(7), false);
  } else {
    running.abort();
    text.value = "";
    counted();
    status.textContent = "";
    document.title = "grainline";
    document.body.classList.remove("asked");
    at("start").hidden = !samples.size;
    answered = new Map();
    followDetail();
    for (const id of ["problem", "query", "notes", "legend"]) at(id).hidden = true;
    hits.replaceChildren();
    hits.removeAttribute("aria-busy");
  }
}
window.addEventListener("popstate", follow);

async function start() {
  try {
    const index = await ask("api/index");
    limits = index.limits;
    canShow = index.heat;
    const model = index.model ? `model ${index.model} (${index.method})` : index.method;
    at("about").textContent = `${index.name}: ${plural(index.images, "image")}, ${model}`;
    at("validated").textContent = index.validated;
    at("validated").hidden = !index.validated;
    if (!index.images) return complain("This index holds no images yet; `grainline index add` takes some in.", start);
    problem.hidden = true;
    showStart(index);
    if (COARSE) at("hint").textContent = "An image can also be the query: take or choose one.";
    current = null;
    follow();
  } catch (error) {
    at("about").textContent = "";
    complain(error.message, start);
  }
}
start();
