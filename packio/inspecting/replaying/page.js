// The state (batch, query, enlarged sample) is the page's fragment: it can be linked to.
"use strict";
const MOST = 1000;  // tiles that are shown at once
const batches = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const chosen = byId("batch"), query = byId("query"), large = byId("large");
let shown = [], enlarged = null;

function make(tag, name, ...content) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...content);  // strings become text, never markup
  return element;
}
function title(batch) { return `step ${batch.step}, rank ${batch.rank}`; }
function flips(view) {
  return (view.hflip ? " \u2194" : "") + (view.vflip ? " \u2195" : "");
}
function cropText(view) {
  return `${view.width}\u00d7${view.height} at ${view.left}, ${view.top} \u2192 ` +
    `${view.out_width}\u00d7${view.out_height}` +
    (view.hflip ? ", mirrored left-right" : "") + (view.vflip ? ", mirrored top-bottom" : "");
}
function pictures(sample) {
  return sample.images.map((data) => {
    const image = make("img");
    image.alt = sample.key;
    image.src = "data:image/jpeg;base64," + data;
    return image;
  });
}
function tile(entry) {
  const {batch, sample} = entry;
  const views = sample.views.map((v) => `${v.width}\u00d7${v.height}${flips(v)}`).join(", ");
  const place = (query.value ? `${title(batch)}, ` : "") + `slot ${sample.slot}`;
  const text = make("span", "text", make("span", "key", sample.key.split("/").pop()),
    make("span", "class", sample.class), make("span", "place", place),
    make("span", "place", views || "crop not known"));
  const well = sample.error === null ? make("span", "well", ...pictures(sample))
    : make("span", "well", sample.error);
  const button = make("button", sample.error === null ? "tile" : "tile broken", well, text);
  button.title = sample.key;
  button.dataset.at = entry.at;
  button.addEventListener("click", () => { enlarged = entry; show(); });
  return button;
}
function outline(sample, view) {
  const scale = 200 / Math.max(sample.width, sample.height);
  const whole = make("div", "whole"), box = make("div", "box");
  whole.style.width = `${sample.width * scale}px`;
  whole.style.height = `${sample.height * scale}px`;
  for (const side of ["left", "top", "width", "height"])
    box.style[side] = `${view[side] * scale}px`;
  whole.append(box);
  return make("figure", "", whole, make("figcaption", "", "the crop in the image"));
}
function enlarge({batch, sample}) {
  const facts = [["key", sample.key], ["class", sample.class], ["batch", title(batch)],
    ["slot", sample.slot], ["position", sample.position], ["index", sample.index],
    ["pixels", `${sample.width}\u00d7${sample.height}`],
    ...sample.views.map((view, i) => [i ? `crop ${i + 1}` : "crop", cropText(view)])];
  const list = make("dl");
  for (const [name, value] of facts)
    list.append(make("dt", "", name), make("dd", "", String(value)));
  const well = sample.error === null ? make("div", "well", ...pictures(sample),
    ...sample.views.map((view) => outline(sample, view))) : make("div", "well", sample.error);
  large.className = sample.error === null ? "" : "broken";
  large.replaceChildren(well, list);
  if (!large.open) large.showModal();
}
function show() {
  const text = query.value.toLowerCase(), one = Number(chosen.value);
  const some = text ? batches : [batches[one]];
  shown = some.flatMap((batch) => batch.samples.map((sample) => (
    {batch, sample, at: `${batch.step}.${batch.rank}.${sample.slot}`})))
    .filter(({sample}) => sample.key.toLowerCase().includes(text));
  byId("grid").replaceChildren(...shown.slice(0, MOST).map(tile));
  byId("found").value = shown.length > MOST ? `${MOST} of ${shown.length}` : `${shown.length}`;
  byId("empty").hidden = shown.length > 0;
  byId("note").hidden = Boolean(text) || !batches[one].left_out;
  byId("note").textContent = "The run has left this step out (skip).";
  byId("previous").disabled = one <= 0;
  byId("next").disabled = one >= batches.length - 1;
  if (enlarged) enlarge(enlarged); else if (large.open) large.close();
  const state = Object.entries({batch: chosen.value, q: query.value,
    sample: enlarged ? enlarged.at : ""}).filter(([, value]) => value !== "");
  history.replaceState(null, "", "#" + new URLSearchParams(state));
}
function turn(step) {
  if (enlarged) {
    const at = shown.findIndex(({at}) => at === enlarged.at) + step;
    if (at < 0 || at >= shown.length) return;
    enlarged = shown[at];
  } else {
    const at = Number(chosen.value) + step;
    if (at < 0 || at >= batches.length) return;
    chosen.value = String(at);
    scrollTo(0, 0);
  }
  show();
}
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  chosen.value = state.get("batch") ?? "0";
  if (chosen.selectedIndex < 0) chosen.value = "0";
  query.value = state.get("q") ?? "";
  enlarged = null;
  show();
  const wanted = state.get("sample");
  enlarged = shown.find(({at}) => at === wanted) ?? null;
  if (enlarged) show();
}
batches.forEach((batch, i) => chosen.append(new Option(
  title(batch) + (batch.left_out ? " (left out)" : ""), String(i))));
chosen.addEventListener("change", () => { query.value = ""; show(); });
query.addEventListener("input", show);
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
large.addEventListener("click", (event) => { if (!event.target.closest("dl")) large.close(); });
large.addEventListener("close", () => {
  const last = enlarged;
  enlarged = null;
  show();
  if (last) document.querySelector(`[data-at="${last.at}"]`)?.focus();
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
restore();
