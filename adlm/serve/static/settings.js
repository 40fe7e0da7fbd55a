// The choices of one column: a model, a sampler, and what can be set about it. An empty field leaves it to the model.

const GUESSES = 3; // that are shown for each blank
const NUMBERS = ["steps", "temperature", "top_p"];
const FIELDS = ["model", "sampler", "block_size", ...NUMBERS];
const SIZES = [1, 4, 8, 16, 32, 0]; // of blocks, for models that see whole rows

export const nameOfSize = (size) => (size === 0 ? "whole row" : size === 1 ? "left to right" : `blocks of ${size}`);

const short = (count) => {
  const [divisor, unit] = count >= 1e9 ? [1e9, " B"] : count >= 1e6 ? [1e6, " M"] : count >= 1e3 ? [1e3, " k"] : [1, ""];
  return `${Number((count / divisor).toPrecision(2))}${unit}`;
};

// The ways to write with a model that are worth comparing: those it was trained for, or from left to right, in blocks and
// all at once, if it sees whole rows.
export function readingsOf({ block_sizes: sizes = [], attention, sampling }) {
  const found = sizes.length ? sizes : attention === "full" ? [1, sampling?.block_size || 8, 0] : [];
  return [...found].sort((a, b) => (a || Infinity) - (b || Infinity));
}

// What is known of a model, in a line.
export function factsOf({ name, parameters, stages, attention, length, block_sizes: sizes = [] }) {
  const way = { causal: "left to right", block: "in blocks" }[attention];
  return [
    name, parameters ? `${short(parameters)} parameters` : "", stages > 1 ? "with an anchor stage" : "",
    sizes.length > 1 ? `reads ${sizes.map(nameOfSize).join(", ")}` : way ? `writes ${way}` : "", length ? `rows of ${length} tokens` : "",
  ].filter(Boolean).join(" · ");
}

// models: [{name, sampling: {sampler, steps, ...}, samplers: [{name, about, options}], block_sizes, ...}]
export function mountSettings(element, models, changed = () => {}) {
  const named = (name) => element.querySelector(`[name="${name}"]`);
  const model = named("model"), sampler = named("sampler"), blocks = named("block_size"), about = element.querySelector(".about");

  for (const { name } of models) model.append(new Option(name, name));
  element.querySelector(".model").hidden = models.length < 2;

  const chosenModel = () => models[Math.max(0, model.selectedIndex)];
  const samplers = () => chosenModel()?.samplers ?? [];
  const sampling = () => chosenModel()?.sampling ?? {};
  const chosenSampler = () => samplers().find(({ name }) => name === sampler.value);

  // Not every model can be written with in every way.
  function fill() {
    const before = sampler.value;
    sampler.replaceChildren(new Option("the model's own", ""), ...samplers().map(({ name }) => new Option(name, name)));
    sampler.value = samplers().some(({ name }) => name === before) ? before : "";
    explain();
  }

  function explain() {
    const chosen = chosenSampler();
    about.textContent = [chosen ? chosen.about : ownWay(), holesElsewhere()].filter(Boolean).join(" ");
    for (const name of NUMBERS) limit(named(name), (chosen ?? ownSampler())?.options, name, chosen ? {} : sampling());
    offerBlocks(chosen);
    shorten();
  }

  // A model that writes from left to right or in blocks reads whole rows for holes, if it was trained to.
  const holesElsewhere = () => (chosenModel()?.attention === "block" && chosenModel().fills_holes ? "Holes are filled with the text on both sides in view." : "");

  const ownSampler = () => samplers().find(({ name }) => name === (sampling().sampler ?? samplers()[0]?.name));

  // Without a sampler the server finds one for any size that the model reads.
  const takesBlocks = (chosen) => Boolean(chosen ? chosen.options.block_size : ownSampler()?.options.block_size || chosenModel()?.block_sizes?.length);

  function offerBlocks(chosen) {
    const trained = chosenModel()?.block_sizes ?? [], sizes = trained.length ? trained : SIZES, before = blocks.value;
    blocks.replaceChildren(new Option(sampling().block_size ? `default (${sampling().block_size})` : "default", ""), ...sizes.map((size) => new Option(nameOfSize(size), size)));
    blocks.value = [...blocks.options].some(({ value }) => value === before) ? before : "";
    element.querySelector(".blocks").hidden = !takesBlocks(chosen) || trained.length === 1;
  }

  function ownWay() {
    const { sampler: by, ...rest } = sampling(), settings = Object.entries(rest).map(([name, value]) => `${name} ${value}`);
    const known = ownSampler();
    if (!known) return "";
    return `Recommended for this model: ${[known.name, ...settings].join(", ")}. ${known.about}`;
  }

  function limit(field, options, name, own) {
    const range = options?.[name];
    field.disabled = Boolean(options && name === "steps" && !range);
    field.placeholder = field.disabled ? "" : own[name] ?? range?.default ?? "default";
    if (!range) return;
    if (typeof range.least === "number") field.min = range.least;
    if (typeof range.most === "number") field.max = range.most;
  }

  const number = (field) => (field.value === "" || field.disabled || field.closest("[hidden]") ? null : Number(field.value));

  const chosen = () => [
    models.length > 1 ? model.value : "", sampler.value || "the model's own sampler",
    ...NUMBERS.flatMap((name) => (number(named(name)) === null ? [] : [`${name} ${number(named(name))}`])),
  ].filter(Boolean);
  const sized = (size) => (size === null || size === undefined ? [] : [nameOfSize(size)]);

  // What is set, beside the heading: it is all there is to see of settings that are folded away.
  function shorten() { element.querySelector(".in-short").textContent = [...chosen(), ...sized(number(blocks))].join(", "); }

  model.addEventListener("change", fill);
  sampler.addEventListener("change", explain);
  element.addEventListener("input", () => { shorten(); changed(); });
  fill();

  return {
    element,
    model: chosenModel,
    values: () => ({ ...Object.fromEntries(FIELDS.map((name) => [name, named(name).value])), predictions: named("predictions").checked }),
    restore(values) {
      for (const name of FIELDS) {
        const field = named(name), value = values?.[name] ?? "";
        if (field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value)) field.value = value;
        if (name === "model") fill();
        if (name === "sampler") explain();
      }
      named("predictions").checked = values?.predictions ?? true;
      shorten();
    },
    // So that two columns differ in something from the start.
    differ() {
      if (models.length > 1) model.selectedIndex = 1;
      fill();
      if (models.length < 2) sampler.selectedIndex = Math.min(1, samplers().length);
      explain();
    },
    fold() { element.open = false; },
    valid: () => NUMBERS.every((name) => named(name).reportValidity()),
    // For those who look at a run later.
    described: (seed, { block_size: size = number(blocks) } = {}) => [...chosen(), ...sized(size), `seed ${seed}`].join(", "),
    // A reading in blocks of some size, which the chosen sampler may not have, is what the server makes of it.
    request: (reading = {}) => ({
      model: model.value || null, sampler: "block_size" in reading && !takesBlocks(chosenSampler()) ? null : sampler.value || null, block_size: number(blocks), predictions: named("predictions").checked ? GUESSES : 0,
      ...Object.fromEntries(NUMBERS.map((name) => [name, number(named(name))])),
    }),
  };
}
