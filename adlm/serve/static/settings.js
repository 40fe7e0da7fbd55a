// The choices of one column: a model, a sampler, and what can be set about it. An empty field leaves it to the model.

const NUMBERS = ["steps", "temperature", "top_p"];

// models: [{name, samplers: [{name, about, options}]}]
export function mountSettings(element, models) {
  const named = (name) => element.querySelector(`[name="${name}"]`);
  const model = named("model"), sampler = named("sampler"), about = element.querySelector(".about");

  for (const { name } of models) model.append(new Option(name, name));
  element.querySelector(".model").hidden = models.length < 2;

  const samplers = () => models[Math.max(0, model.selectedIndex)]?.samplers ?? [];

  // Not every model can be written with in every way.
  function fill() {
    const before = sampler.value;
    sampler.replaceChildren(new Option("the model's own", ""), ...samplers().map(({ name }) => new Option(name, name)));
    sampler.value = samplers().some(({ name }) => name === before) ? before : "";
    explain();
  }

  function explain() {
    const chosen = samplers().find(({ name }) => name === sampler.value);
    about.textContent = chosen ? chosen.about : "Every model has a way to sample that suits it.";
    for (const name of NUMBERS) limit(named(name), chosen?.options ?? null, name);
  }

  function limit(field, options, name) {
    const range = options?.[name];
    field.disabled = Boolean(options && name === "steps" && !range);
    field.placeholder = range?.default ?? "default";
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
    name: () => [models.length > 1 ? model.value : "", sampler.value || "the model's own sampler"].filter(Boolean).join(", "),
    request: () => ({
      model: model.value || null, sampler: sampler.value || null,
      ...Object.fromEntries(NUMBERS.map((name) => [name, number(named(name))])),
    }),
  };
}
