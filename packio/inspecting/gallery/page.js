// The state (class, query, page, enlarged sample) is the page's fragment: it can be linked to.
"use strict";
const PAGE = 60;
const {classes, samples} = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const chosen = byId("class"), query = byId("query"), large = byId("large");
let matching = [], page = 1, enlarged = null;

function make(tag, name, ...content) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...content);  // strings become text, never markup
  return element;
}
function bytes(count) {
  if (count < 1000) return count + " B";
  return count < 1e6 ? (count / 1e3).toFixed(1) + " kB" : (count / 1e6).toFixed(1) + " MB";
}
function classText(sample) {
  if (sample.classes.length) return sample.classes.map((c) => classes[c] ?? String(c)).join(", ");
  return sample.label === null ? "" : "\u2013";
}
function well(sample) {
  if (sample.error !== null) return make("div", "well", sample.error);
  const image = make("img");
  image.alt = sample.key;
  image.src = "data:image/jpeg;base64," + sample.thumbnail;
  return make("div", "well", image);
}
function tile(sample) {
  const facts = `${sample.width}\u00d7${sample.height} · ${bytes(sample.bytes)}`;
  const text = make("span", "text", make("span", "key", sample.key.split("/").pop()),
    make("span", "class", classText(sample)), make("span", "size", facts));
  const button = make("button", sample.error === null ? "tile" : "tile broken", well(sample), text);
  button.title = sample.key;
  button.dataset.index = sample.index;
  button.addEventListener("click", () => { enlarged = sample; show(); });
  return button;
}
function enlarge(sample) {
  const facts = [["key", sample.key], ["class", classText(sample)], ["index", sample.index],
    ["pixels", `${sample.width}\u00d7${sample.height}` +
      (sample.orientation > 1 ? `, Exif orientation ${sample.orientation}` : "")],
    ["bytes", `${sample.bytes.toLocaleString("en")} at ${sample.offset.toLocaleString("en")}`],
    ["encoding", sample.encoding]];
  const list = make("dl"), shown = well(sample);
  for (const other of sample.more) {
    if (other.text !== undefined) { facts.push([other.name, other.text]); continue; }
    const image = make("img");
    image.alt = image.title = other.name;
    image.src = other.png ? "data:image/png;base64," + other.png
      : "data:image/jpeg;base64," + other.jpeg;
    shown.append(make("figure", "", image, make("figcaption", "", other.name)));
  }
  for (const [name, value] of facts)
    list.append(make("dt", "", name), make("dd", "", String(value)));
  large.className = sample.error === null ? "" : "broken";
  large.replaceChildren(shown, list);
  if (!large.open) large.showModal();
}
function filter() {
  const text = query.value.toLowerCase(), one = chosen.value;
  matching = samples.filter((s) => s.key.toLowerCase().includes(text) &&
    (one === "" || (one === "broken" ? s.error !== null : s.classes.includes(Number(one)))));
}
function show() {
  filter();
  const pages = Math.max(1, Math.ceil(matching.length / PAGE));
  page = Math.min(Math.max(page, 1), pages);
  const first = (page - 1) * PAGE, some = matching.slice(first, first + PAGE);
  byId("grid").replaceChildren(...some.map(tile));
  byId("empty").hidden = some.length > 0;
  byId("position").value = some.length
    ? `${first + 1}\u2013${first + some.length} of ${matching.length}` : "0";
  byId("previous").disabled = page <= 1;
  byId("next").disabled = page >= pages;
  if (enlarged) enlarge(enlarged); else if (large.open) large.close();
  const state = Object.entries({class: chosen.value, q: query.value, page: page > 1 ? page : "",
    sample: enlarged ? enlarged.index : ""}).filter(([, value]) => value !== "");
  history.replaceState(null, "", "#" + new URLSearchParams(state));
}
function turn(step) {
  if (enlarged) {
    const at = matching.indexOf(enlarged) + step;
    if (at < 0 || at >= matching.length) return;
    enlarged = matching[at];
    page = Math.floor(at / PAGE) + 1;
  } else {
    page += step;
    scrollTo(0, 0);
  }
  show();
}
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  chosen.value = state.get("class") ?? "";
  if (chosen.selectedIndex < 0) chosen.value = "";
  query.value = state.get("q") ?? "";
  page = parseInt(state.get("page"), 10) || 1;
  enlarged = samples.find((s) => String(s.index) === state.get("sample")) ?? null;
  show();
}
function options() {
  const counts = new Map();
  for (const s of samples) for (const c of s.classes) counts.set(c, (counts.get(c) ?? 0) + 1);
  const broken = samples.filter((s) => s.error !== null).length;
  const entries = [["", `all classes (${samples.length})`]];
  if (broken) entries.push(["broken", `broken (${broken})`]);
  for (const c of [...counts.keys()].sort((a, b) => a - b))
    entries.push([c, `${classes[c] ?? c} (${counts.get(c)})`]);
  for (const [value, text] of entries) chosen.append(new Option(text, value));
}
chosen.addEventListener("change", () => { page = 1; show(); });
query.addEventListener("input", () => { page = 1; show(); });
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
large.addEventListener("click", (event) => { if (!event.target.closest("dl")) large.close(); });
large.addEventListener("close", () => {
  const last = enlarged;
  enlarged = null;
  show();
  if (last) document.querySelector(`[data-index="${last.index}"]`)?.focus();
});
addEventListener("hashchange", restore);
addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target === query || event.target === chosen) {
    if (event.key === "Escape") event.target.blur();
  } else if (event.key === "ArrowLeft") turn(-1);
  else if (event.key === "ArrowRight") turn(1);
  else if (event.key === "/" && !enlarged) { event.preventDefault(); query.focus(); }
});
options();
restore();
