{% include "tiles.js" %}
const PAGE = 60;
const {classes, splits, samples} = JSON.parse(byId("data").textContent);
const split = byId("split");
const KEPT = 8;  // answers of the server
const WAIT = 300;  // milliseconds until the page says that it waits
const answers = new Map();
let shown = [], total = 0, page = 1, asked = 0, opacity = 50;
let last = 1, turning = false;  // the page that is shown; whether another is awaited

// Where samples come from: all are in the page, or a server is asked for those of a page.
function isWanted(s) {
  const one = chosen.value;
  return s.key.toLowerCase().includes(query.value.toLowerCase()) &&
    (split.value === "" || s.split === splits[split.value]) &&
    (one === "" || (one === "broken" ? s.error !== null : s.classes.includes(Number(one))));
}
async function fetched(query) {
  const answer = await fetch("samples?" + query).catch(() => {
    throw new Error("The server has ended. Start packio view --serve again, and open its address.");
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
async function ask(values) {
  const query = String(new URLSearchParams(values));
  if (!answers.has(query)) {
    const answer = await fetched(query);
    if (answers.size >= KEPT) answers.delete(answers.keys().next().value);
    answers.set(query, answer);
  }
  return answers.get(query);
}
function tell(trouble) {
  byId("trouble").textContent = trouble;
  byId("trouble").togglePopover(trouble !== "");  // above all else, also what is enlarged
}
// Waits for an answer; a failure is told on the page. Returns null then.
async function awaited(answer) {
  const waiting = setTimeout(() => { byId("position").value = "\u2026"; }, WAIT);
  try {
    const value = await answer;
    tell("");
    return value;
  } catch (error) {
    tell(error.message);
    return null;
  } finally {
    clearTimeout(waiting);
  }
}
async function found(first) {
  if (samples === null)
    return ask({class: chosen.value, split: split.value, q: query.value, first, count: PAGE});
  const matching = samples.filter(isWanted);
  return {total: matching.length, samples: matching.slice(first, first + PAGE)};
}
async function named(name) {
  if (!/^\d+$/.test(name ?? "")) return null;
  if (samples === null) return (await ask({index: name}).catch(() => null))?.samples[0] ?? null;
  return samples.find((s) => nameOf(s) === name) ?? null;
}

function nameOf(sample) { return String(sample.index); }
function bytes(count) {
  if (count < 1000) return count + " B";
  return count < 1e6 ? (count / 1e3).toFixed(1) + " kB" : (count / 1e6).toFixed(1) + " MB";
}
function classText(sample) {
  if (sample.classes.length) return sample.classes.map((c) => classes[c] ?? String(c)).join(", ");
  return sample.labelled ? "\u2013" : "";
}
function tile(sample) {
  const facts = `${sample.width}\u00d7${sample.height} · ${bytes(sample.bytes)}`;
  const text = make("span", "text", make("span", "key", sample.key.split("/").pop()),
    make("span", "class", classText(sample)), make("span", "size", facts));
  const well = sample.error === null ? picture(sample.key, sample.thumbnail) : sample.error;
  return tileOf(sample, sample, make("span", "well", well), text);
}
function drawn(tag, values) {
  const element = document.createElementNS(byId("svg").namespaceURI, tag);
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
  return element;
}
function boxesOver(sample) {
  const [width, height] = sample.upright, edge = Math.max(width, height);
  const over = drawn("svg", {viewBox: `0 0 ${width} ${height}`, class: "over", role: "img",
    "aria-label": `boxes: ${sample.boxes.length}`});
  for (const {x, y, width: wide, height: high, name} of sample.boxes) {
    over.append(drawn("rect", {x, y, width: wide, height: high}));
    const text = drawn("text", {x: x + edge / 200, y: Math.max(y, edge / 30) - edge / 200,
      "font-size": edge / 32, "stroke-width": edge / 160});
    text.textContent = name;
    over.append(text);
  }
  return over;
}
function maskOver(mask) {
  const image = make("img", "over");
  image.alt = `mask: ${mask.name}`;
  image.src = "data:image/png;base64," + mask.mask;
  image.style.opacity = opacity / 100;
  return image;
}
function slider(over) {
  const input = make("input");
  Object.assign(input, {type: "range", min: 0, max: 100, value: opacity});
  input.addEventListener("input", () => {
    opacity = input.value;
    over.style.opacity = opacity / 100;
  });
  return make("label", "slider", "opacity ", input);
}
// The image itself where there is one, else its thumbnail; the first mask and the boxes above it.
function stack(sample, mask) {
  const whole = sample.image ?? (samples === null && sample.original
    ? "image?" + new URLSearchParams({index: sample.index}) : null);
  const image = picture(sample.key, sample.thumbnail), thumbnail = image.src;
  if (whole !== null) {
    image.addEventListener("error", () => { image.src = thumbnail; }, {once: true});
    image.src = whole;
  }
  const layers = make("div", "stack", image);
  if (mask) layers.append(maskOver(mask));
  if (whole !== null && sample.boxes.length) layers.append(boxesOver(sample));
  return layers;
}
function enlarge(sample) {
  const facts = [["key", sample.key], ["class", classText(sample)], ["index", sample.index],
    ["pixels", `${sample.width}\u00d7${sample.height}` +
      (sample.orientation > 1 ? `, Exif orientation ${sample.orientation}` : "")],
    ["bytes", `${sample.bytes.toLocaleString("en")} at ${sample.offset.toLocaleString("en")}`],
    ["encoding", sample.encoding]];
  const masks = sample.more.filter((other) => other.mask), first = masks[0];
  const well = make("div", "well", sample.error === null ? stack(sample, first) : sample.error);
  if (sample.error === null && first)
    facts.push([first.name, slider(well.querySelector("img.over"))]);
  for (const other of sample.more) {
    if (other.text !== undefined) { facts.push([other.name, other.text]); continue; }
    if (other === first && sample.error === null) continue;
    const image = make("img");
    image.alt = image.title = other.name;
    image.src = other.mask ? "data:image/png;base64," + other.mask
      : "data:image/jpeg;base64," + other.jpeg;
    well.append(make("figure", "", image, make("figcaption", "", other.name)));
  }
  showLarge(sample, well, facts);
}
function place() {
  const first = (page - 1) * PAGE;
  byId("position").value = shown.length
    ? `${first + 1}\u2013${first + shown.length} of ${total.toLocaleString("en")}` : "0";
  byId("previous").disabled = page <= 1;
  byId("next").disabled = first + PAGE >= total;
}
async function show() {
  const mine = ++asked;
  let some = await awaited(found((page - 1) * PAGE));
  if (some?.samples.length === 0 && some.total > 0 && mine === asked) {  // a page behind the last
    page = Math.ceil(some.total / PAGE);
    some = await awaited(found((page - 1) * PAGE));
  }
  if (mine !== asked) return;  // somebody has asked for another page since
  if (some === null) { page = last; place(); return; }
  shown = some.samples;
  total = some.total;
  if (total === 0) page = 1;
  last = page;
  byId("grid").replaceChildren(...shown.map(tile));
  byId("empty").hidden = shown.length > 0;
  place();
  keep({class: chosen.value, split: split.value, q: query.value, page: page > 1 ? page : ""});
}
async function turn(step) {
  if (!enlarged) {
    page = Math.min(Math.max(page + step, 1), Math.max(1, Math.ceil(total / PAGE)));
    scrollTo(0, 0);
    return show();
  }
  const at = shown.findIndex((s) => s.index === enlarged.index);
  const to = (page - 1) * PAGE + at + step;
  if (at < 0 || to < 0 || to >= total || turning) return;
  const next = Math.floor(to / PAGE) + 1;
  if (next !== page) {
    turning = true;
    const some = await awaited(found((next - 1) * PAGE));
    turning = false;
    if (some === null || !enlarged) return;
    [page, shown] = [next, some.samples];
  }
  enlarged = shown[to - (page - 1) * PAGE] ?? enlarged;
  await show();
}
async function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const [element, name] of [[chosen, "class"], [split, "split"]]) {
    element.value = state.get(name) ?? "";
    if (element.selectedIndex < 0) element.value = "";
  }
  query.value = state.get("q") ?? "";
  page = Math.max(1, parseInt(state.get("page"), 10) || 1);
  enlarged = await named(state.get("sample"));
  await show();
}
function options() {
  const of = new Map(samples === null ? classes.map((_, c) => [c, null]) : []);
  let all = samples === null ? null : samples.length, broken = 0;
  for (const s of samples ?? []) {
    broken += s.error !== null;
    for (const c of s.classes) of.set(c, (of.get(c) ?? 0) + 1);
  }
  chosen.append(new Option(all === null ? "all classes" : `all classes (${all})`, ""));
  if (broken) chosen.append(new Option(`broken (${broken})`, "broken"));
  for (const c of [...of.keys()].sort((a, b) => a - b))
    chosen.append(new Option((classes[c] ?? c) + (of.get(c) === null ? "" : ` (${of.get(c)})`), c));
  split.append(new Option("all splits", ""), ...splits.map((name, i) => new Option(name, i)));
  split.hidden = splits.length === 0;
}
for (const element of [chosen, split])
  element.addEventListener("change", () => { page = 1; show(); });
query.addEventListener("input", () => { page = 1; show(); });
options();
restore();
