// The studio: a prompt, one column or several, and the buttons that they share.

import { codeFor } from "./code.js";
import { mountConstraints } from "./constraints.js";
import { mountLane } from "./lane.js";
import { PRESETS, exampleFor, presetFor } from "./presets.js";
import { mountPrompt } from "./prompt.js";
import { factsOf, mountSettings, nameOfSize, readingsOf } from "./settings.js";
import { download, pageOf } from "./share.js";
import { store, stored } from "./store.js";
import { ask, hasKey, useKey } from "./stream.js";
import { mountWarnings } from "./warnings.js";

const SAMPLES = 3, SEEDS = 2 ** 31;
const SHORTEST = 6; // seconds that playing together takes at least

const find = (name) => document.querySelector(name);
const form = find("#ask"), lanesBox = find("#lanes"), runButton = find("#run"), share = find("#share"), examples = find("#examples");
const compare = find("#compare"), together = find("#together"), code = find("#code");
const narrow = matchMedia("(max-width: 34rem)");
const constraints = mountConstraints(find("#constraints"), edited);
const prompt = mountPrompt(find(".prompt"), edited);
const warn = mountWarnings(find("#warning"), prompt);
let lanes = [], settings = [], models = [], mode = "one", turn = 0;

const numberIn = (name) => {
  const field = form.elements[name];
  return field.value === "" || field.disabled ? null : Number(field.value);
};

function shared() {
  const common = { seed: numberIn("seed") ?? 0 };
  const holes = prompt.good().length > 0;
  return { common, ask: { ...prompt.request(), max_tokens: numberIn("max_tokens"), ...(holes ? constraints.request() : {}) } };
}

const running = () => lanes.some((lane) => lane.running());
const recorded = () => lanes.filter((lane) => lane.recording());

function changed() {
  runButton.textContent = running() ? "Stop" : "Run";
  runButton.classList.toggle("stop", running());
  find("#another").disabled = running();
  share.hidden = !recorded().length;
  together.hidden = running() || recorded().length < 2;
  examples.hidden = running() || recorded().length > 0;
  showCode();
  if (!running()) keep();
}

// An error is about what was asked, which has changed.
function edited() {
  const holes = prompt.good();
  form.elements.max_tokens.disabled = holes.length > 0;
  constraints.update(holes);
  for (const lane of lanes) lane.forget();
  warn(settings[0]?.model());
  showCode();
}

function showCode() {
  if (!code.open || !lanes.length) return;
  const { curl, python } = codeFor(lanes[0].asked(), { keyed: hasKey() });
  code.querySelector(".curl").textContent = curl;
  code.querySelector(".python").textContent = python;
}

function keep() {
  if (!lanes.length) return;
  store({
    mode, prompt: prompt.field.value, constraints: constraints.values(), settings: settings.map((each) => each.values()),
    fields: Object.fromEntries(["seed", "max_tokens"].map((name) => [name, form.elements[name].value])),
    results: lanes.map((lane) => lane.state()),
  });
}

const readings = () => readingsOf(settings[0].model());

// What each column asks otherwise than the others; null where it has settings of its own.
const variants = () => ({
  one: [null],
  two: [null, null],
  samples: Array.from({ length: SAMPLES }, (_, i) => ({ label: `Sample ${i + 1}`, seed: i })),
  readings: readings().map((size) => ({ label: nameOfSize(size).replace(/^./, (c) => c.toUpperCase()), ask: { block_size: size } })),
})[mode];

function offerModes() {
  const several = readings().length > 1;
  if (mode === "readings" && !several) arrange("one");
  const offered = [["one", "one text"], ["two", "two settings"], ["samples", `${SAMPLES} samples`], ...(several ? [["readings", `${readings().length} ways to write`]] : [])];
  compare.replaceChildren(...offered.map(([value, name]) => new Option(name, value)));
  compare.value = mode;
  find("#facts").textContent = models.length === 1 ? factsOf(models[0]) : settings.map((each) => factsOf(each.model())).join(" | ");
  find('.presets [data-preset="holes"]').disabled = settings[0]?.model().fills_holes === false;
  edited();
}

function newSettings() {
  const element = find("#settings").content.firstElementChild.cloneNode(true);
  element.open = !narrow.matches;
  return mountSettings(element, models, offerModes);
}

function arrange(to) {
  for (const lane of lanes) lane.stop();
  mode = document.body.dataset.mode = to;
  const own = variants().filter((each) => each === null).length || 1;
  settings = settings.slice(0, own);
  while (settings.length < own) {
    settings.push(newSettings());
    if (settings.length > 1) settings[1].differ();
  }
  lanesBox.replaceChildren();
  find("#common").replaceChildren();
  lanes = variants().map((variant, i, all) => {
    const element = find("#lane").content.firstElementChild.cloneNode(true), chosen = settings[variant ? 0 : i];
    element.setAttribute("aria-label", variant?.label ?? `column ${i + 1} of ${all.length}`);
    if (variant) find("#common").replaceChildren(chosen.element); else element.prepend(chosen.element);
    lanesBox.append(element);
    const appeared = () => { if (narrow.matches && i === 0) element.querySelector(".output").scrollIntoView({ block: "start" }); };
    return mountLane(element, { settings: chosen, variant: variant ?? {}, shared, changed, appeared });
  });
  lanesBox.className = `lanes ${["", "", "two", "three", "two"][Math.min(lanes.length, 4)]}`;
  changed();
}

async function start() {
  if (!lanes.length) await load();
  if (!lanes.length || running()) return;
  if (![...form.elements].every((field) => field.checkValidity() || !field.reportValidity())) return;
  const mine = ++turn;
  for (const lane of lanes) lane.clear();
  if (narrow.matches) for (const each of settings) each.fold();
  const troubles = mode === "readings" ? await inTurn(mine) : await Promise.all(lanes.map((lane) => lane.start()));
  if (troubles.some((trouble) => trouble?.status === 401)) wantKey();
}

// One after another, so that none takes time from the others: their speeds are compared.
async function inTurn(mine) {
  const troubles = [];
  lanes.forEach((lane) => lane.wait(true));
  for (const lane of lanes) {
    lane.wait(false);
    if (mine === turn) troubles.push(await lane.start());
  }
  return troubles;
}

function stop() {
  turn += 1;
  lanes.forEach((lane) => lane.stop());
}

function wantKey() {
  find("#key-field").hidden = false;
  form.elements.key.focus();
}

function restore() {
  const { prompt: text, fields = {}, settings: values = [], results = [], mode: before, constraints: held } = stored();
  settings = [newSettings()];
  settings[0].restore(values[0]);
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  constraints.restore(held ?? []);
  prompt.set(prompt.field.value || text || "");
  mode = before ?? "one";
  if (!variants()?.length) mode = "one";
  arrange(mode);
  settings.forEach((each, i) => { if (values[i]) each.restore(values[i]); });
  offerModes();
  const known = new Set(models.map(({ name }) => name));
  lanes.forEach((lane, i) => { if (results[i] && known.has(results[i].recording.request?.model)) lane.restore(results[i]); });
  changed();
}

async function load() {
  const notice = find(".notice");
  try {
    const { data } = await ask("v1/models");
    models = await Promise.all(data.map(async ({ id, ...known }) => ({ ...known, name: id, samplers: await ask(`v1/samplers?model=${encodeURIComponent(id)}`) })));
    notice?.remove();
    restore();
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
  if (running()) stop(); else start();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  start();
});
form.addEventListener("input", edited);
form.elements.key.addEventListener("change", () => useKey(form.elements.key.value));
find("#add-hole").addEventListener("click", () => {
  const size = find("#hole-size");
  if (size.reportValidity()) prompt.addHole(Number(size.value));
});
find("#another").addEventListener("click", () => {
  form.elements.seed.value = Math.floor(Math.random() * SEEDS);
  start();
});
compare.addEventListener("change", () => { if (lanes.length) arrange(compare.value); });
code.addEventListener("toggle", showCode);
together.addEventListener("click", () => {
  const longest = Math.max(...lanes.map((lane) => lane.seconds()));
  const times = Math.max(1, SHORTEST / Math.max(longest, 0.001));
  for (const lane of recorded()) lane.replay(times);
});
share.addEventListener("click", async () => {
  const runs = recorded().map((lane) => lane.recording()).map((recording) => ({ name: recording.name, recording }));
  download(await pageOf(runs, find(".theme")), "adlm-run.html");
});
addEventListener("pagehide", keep);
for (const preset of PRESETS) {
  const fill = () => { prompt.set(preset.text); prompt.field.focus(); };
  find(".presets").append(presetFor(preset, fill));
  examples.querySelector(".cards").append(exampleFor(preset, () => { fill(); start(); }));
}
load();
