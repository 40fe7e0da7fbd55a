// The studio: a prompt, one column or two, and the buttons that they share.

import { mountLane } from "./lane.js";
import { mountPrompt } from "./prompt.js";
import { download, pageOf } from "./share.js";
import { ask, useKey } from "./stream.js";

const EXAMPLES = [
  "Once upon a time there was a little [MASK:2] who loved to [MASK:4].",
  "Lily found a [MASK:3] in the garden. [MASK:16] She smiled and went home.",
  "[MASK:24] They were the best of friends.",
];

const find = (name) => document.querySelector(name);
const form = find("#ask"), lanesBox = find("#lanes"), runButton = find("#run"), share = find("#share"), examples = find("#examples");
const prompt = mountPrompt(find(".prompt"), (holes) => { form.elements.max_tokens.disabled = holes; });
let lanes = [], models = [];

const numberIn = (name) => {
  const field = form.elements[name];
  return field.value === "" || field.disabled ? null : Number(field.value);
};

function shared() {
  return { common: { seed: numberIn("seed") ?? 0 }, ask: { ...prompt.request(), max_tokens: numberIn("max_tokens") } };
}

function changed() {
  const running = lanes.some((lane) => lane.running());
  runButton.textContent = running ? "Stop" : "Run";
  runButton.classList.toggle("stop", running);
  share.hidden = !lanes.some((lane) => lane.recording());
  examples.hidden = running || lanes.some((lane) => lane.recording());
}

function addLane() {
  const element = find("#lane").content.firstElementChild.cloneNode(true);
  element.setAttribute("aria-label", lanes.length ? "second column" : "first column");
  lanesBox.append(element);
  const lane = mountLane(element, { models, shared, changed });
  if (lanes.length) lane.settings.differ();
  lanes = [...lanes, lane];
}

function compare(two) {
  if (two && lanes.length === 1) addLane();
  if (!two && lanes.length === 2) {
    lanes[1].stop();
    lanesBox.lastElementChild.remove();
    lanes = lanes.slice(0, 1);
  }
  lanesBox.classList.toggle("two", two);
  changed();
}

async function start() {
  if (!lanes.length) await load();
  if (lanes.some((lane) => lane.running())) return;
  if (![...form.elements].every((field) => field.checkValidity() || !field.reportValidity())) return;
  const troubles = await Promise.all(lanes.map((lane) => lane.start()));
  if (troubles.some((trouble) => trouble?.status === 401)) wantKey();
}

function wantKey() {
  find("#key-field").hidden = false;
  form.elements.key.focus();
}

async function load() {
  const notice = find(".notice");
  try {
    const { data } = await ask("v1/models");
    models = await Promise.all(data.map(async ({ id, sampling }) => ({ name: id, sampling, samplers: await ask(`v1/samplers?model=${encodeURIComponent(id)}`) })));
    notice?.remove();
    addLane();
    compare(find("#compare").checked);
  } catch (error) {
    const shown = notice ?? document.createElement("p");
    Object.assign(shown, { className: "notice problem", textContent: error.message, role: "alert" });
    lanesBox.before(shown);
    if (error.status === 401) wantKey();
    if (error.status === 503) setTimeout(load, 1000); // the models are being read
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (lanes.some((lane) => lane.running())) lanes.forEach((lane) => lane.stop());
  else start();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  start();
});
form.elements.key.addEventListener("change", () => useKey(form.elements.key.value));
find("#add-hole").addEventListener("click", () => {
  const size = find("#hole-size");
  if (size.reportValidity()) prompt.addHole(Number(size.value));
});
find("#compare").addEventListener("change", (event) => { if (lanes.length) compare(event.target.checked); });
share.addEventListener("click", async () => {
  const runs = lanes.map((lane) => lane.recording()).filter(Boolean).map((recording) => ({ name: recording.name, recording }));
  download(await pageOf(runs, find(".theme")), "adlm-run.html");
});
for (const text of EXAMPLES) {
  const button = document.createElement("button"), parts = text.split(/\[MASK:(\d+)\]/);
  button.type = "button";
  button.className = "example";
  button.setAttribute("aria-label", `run: ${text}`);
  parts.forEach((part, i) => {
    if (i % 2 === 0) { button.append(part); return; }
    const hole = document.createElement("span");
    hole.className = "hole";
    hole.style.setProperty("--n", part);
    button.append(hole);
  });
  button.addEventListener("click", () => { prompt.set(text); prompt.field.focus(); start(); });
  examples.querySelector(".cards").append(button);
}
load();
