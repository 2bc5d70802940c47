{% include "tiles.js" %}
const MOST = 1000;  // tiles that are shown at once
const batches = JSON.parse(document.getElementById("data").textContent);
let shown = [];

function nameOf(entry) { return entry.at; }
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
  return sample.images.map((data) => picture(sample.key, data));
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
  return tileOf(entry, sample, well, text);
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
  const well = sample.error === null ? make("div", "well", ...pictures(sample),
    ...sample.views.map((view) => outline(sample, view))) : make("div", "well", sample.error);
  showLarge(sample, well, facts);
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
  keep({batch: chosen.value, q: query.value});
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
restore();
