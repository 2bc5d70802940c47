// What pages of tiles share. A page's script includes this one, and has `show` (fill the page),
// `enlarge` (show an entry alone), `turn` (go on, or back), `restore` (take the state from the
// fragment) and `nameOf` (what the fragment calls an entry). A sample has a key, and an error or null.
"use strict";
const byId = (id) => document.getElementById(id);
const query = byId("query"), chosen = document.querySelector("#controls select");
const large = byId("large");
let enlarged = null;

function make(tag, name, ...content) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...content);  // strings become text, never markup
  return element;
}
function picture(text, data) {
  const image = make("img");
  image.alt = text;
  image.src = "data:image/jpeg;base64," + data;
  return image;
}
function tileOf(entry, sample, well, text) {
  const button = make("button", sample.error === null ? "tile" : "tile broken", well, text);
  button.title = sample.key;
  button.dataset.at = nameOf(entry);
  button.addEventListener("click", () => { enlarged = entry; show(); });
  return button;
}
function showLarge(sample, well, facts) {
  const list = make("dl");
  for (const [name, value] of facts)
    list.append(make("dt", "", name), make("dd", "", value instanceof Node ? value : String(value)));
  large.className = sample.error === null ? "" : "broken";
  large.replaceChildren(well, list);
  if (large.open) return;
  large.showModal();
  large.focus();  // else the first control has it, and takes the arrow keys
}
// Shows or closes what is enlarged, and keeps the state in the fragment: it can be linked to.
function keep(state) {
  if (enlarged) enlarge(enlarged); else if (large.open) large.close();
  const all = {...state, sample: enlarged ? nameOf(enlarged) : ""};
  const some = Object.entries(all).filter(([, value]) => value !== "");
  history.replaceState(null, "", "#" + new URLSearchParams(some));
}
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
large.addEventListener("click", (event) => { if (!event.target.closest("dl")) large.close(); });
large.addEventListener("close", () => {
  const last = enlarged;
  enlarged = null;
  Promise.resolve(show()).then(() => {
    if (last) document.querySelector(`[data-at="${nameOf(last)}"]`)?.focus();
  });
});
addEventListener("hashchange", restore);
addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.matches?.("input, select")) {
    if (event.key === "Escape" && !enlarged) event.target.blur();
  } else if (event.key === "ArrowLeft") turn(-1);
  else if (event.key === "ArrowRight") turn(1);
  else if (event.key === "/" && !enlarged) { event.preventDefault(); query.focus(); }
});
