// The choices of one column: a model, a sampler, and what can be set about it. An empty field leaves it to the model.

const NUMBERS = ["steps", "temperature", "top_p"];

// models: [{name, sampling: {sampler, steps, ...}, samplers: [{name, about, options}]}]
export function mountSettings(element, models) {
  const named = (name) => element.querySelector(`[name="${name}"]`);
  const model = named("model"), sampler = named("sampler"), about = element.querySelector(".about");

  for (const { name } of models) model.append(new Option(name, name));
  element.querySelector(".model").hidden = models.length < 2;

  const chosenModel = () => models[Math.max(0, model.selectedIndex)];
  const samplers = () => chosenModel()?.samplers ?? [];
  const sampling = () => chosenModel()?.sampling ?? {};

  // Not every model can be written with in every way.
  function fill() {
    const before = sampler.value;
    sampler.replaceChildren(new Option("the model's own", ""), ...samplers().map(({ name }) => new Option(name, name)));
    sampler.value = samplers().some(({ name }) => name === before) ? before : "";
    explain();
  }

  function explain() {
    const chosen = samplers().find(({ name }) => name === sampler.value);
    about.textContent = chosen ? chosen.about : ownWay();
    for (const name of NUMBERS) limit(named(name), chosen?.options ?? null, name);
  }

  function ownWay() {
    const { sampler: by, ...rest } = sampling(), settings = Object.entries(rest).map(([name, value]) => `${name} ${value}`);
    const known = samplers().find(({ name }) => name === (by ?? samplers()[0]?.name));
    if (!known) return "";
    return `What suits this model: ${[known.name, ...settings].join(", ")}. ${known.about}`;
  }

  function limit(field, options, name) {
    const range = options?.[name];
    field.disabled = Boolean(options && name === "steps" && !range);
    field.placeholder = range?.default ?? (options ? "default" : sampling()[name] ?? "default");
    if (!range) return;
    if (typeof range.least === "number") field.min = range.least;
    if (typeof range.most === "number") field.max = range.most;
  }

  const number = (field) => (field.value === "" || field.disabled ? null : Number(field.value));
  model.addEventListener("change", fill);
  sampler.addEventListener("change", explain);
  fill();

  return {
    // So that two columns differ in something from the start.
    differ() {
      if (models.length > 1) model.selectedIndex = 1;
      fill();
      if (models.length < 2) sampler.selectedIndex = Math.min(1, samplers().length);
      explain();
    },
    valid: () => NUMBERS.every((name) => named(name).reportValidity()),
    // For those who look at a run later.
    described: (seed) => [
      models.length > 1 ? model.value : "", sampler.value || "the model's own sampler",
      ...NUMBERS.flatMap((name) => (number(named(name)) === null ? [] : [`${name} ${number(named(name))}`])), `seed ${seed}`,
    ].filter(Boolean).join(", "),
    request: () => ({
      model: model.value || null, sampler: sampler.value || null,
      ...Object.fromEntries(NUMBERS.map((name) => [name, number(named(name))])),
    }),
  };
}
