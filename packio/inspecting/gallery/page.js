{% include "tiles.js" %}
const PAGE = 60;
const {classes, samples} = JSON.parse(document.getElementById("data").textContent);
let matching = [], page = 1;

function nameOf(sample) { return String(sample.index); }
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
  return make("div", "well", picture(sample.key, sample.thumbnail));
}
function tile(sample) {
  const facts = `${sample.width}\u00d7${sample.height} · ${bytes(sample.bytes)}`;
  const text = make("span", "text", make("span", "key", sample.key.split("/").pop()),
    make("span", "class", classText(sample)), make("span", "size", facts));
  return tileOf(sample, sample, well(sample), text);
}
function enlarge(sample) {
  const facts = [["key", sample.key], ["class", classText(sample)], ["index", sample.index],
    ["pixels", `${sample.width}\u00d7${sample.height}` +
      (sample.orientation > 1 ? `, Exif orientation ${sample.orientation}` : "")],
    ["bytes", `${sample.bytes.toLocaleString("en")} at ${sample.offset.toLocaleString("en")}`],
    ["encoding", sample.encoding]];
  const shown = well(sample);
  for (const other of sample.more) {
    if (other.text !== undefined) { facts.push([other.name, other.text]); continue; }
    const image = make("img");
    image.alt = image.title = other.name;
    image.src = other.png ? "data:image/png;base64," + other.png
      : "data:image/jpeg;base64," + other.jpeg;
    shown.append(make("figure", "", image, make("figcaption", "", other.name)));
  }
  showLarge(sample, shown, facts);
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
  keep({class: chosen.value, q: query.value, page: page > 1 ? page : ""});
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
  enlarged = samples.find((s) => nameOf(s) === state.get("sample")) ?? null;
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
options();
restore();
