// What may stand in each hole of the prompt: anything, one of some words, digits, or what matches a pattern.

const KINDS = [["anything", "anything"], ["choice", "one of"], ["digits", "digits"], ["pattern", "a pattern"]];
const HINTS = { choice: "big, little, very old", pattern: "[A-Z][a-z]+" };

const wording = ({ kind, value }) => ({
  choice: () => ({ choice: value.split(",").map((each) => each.trim()).filter(Boolean) }),
  digits: () => ({ digits: true }),
  pattern: () => ({ pattern: value }),
}[kind]?.() ?? null);

export function mountConstraints(box, changed) {
  let values = [], count = 0; // values of holes that are gone come back with them

  function row(hole, i) {
    const line = document.createElement("div"), kind = document.createElement("select"), value = document.createElement("input");
    const name = document.createElement("code");
    line.className = "constraint";
    name.textContent = hole.text;
    kind.setAttribute("aria-label", `what may stand in hole ${i + 1}`);
    for (const [key, said] of KINDS) kind.append(new Option(said, key));
    Object.assign(value, { type: "text", maxLength: 500, autocomplete: "off", spellcheck: false });
    const given = values[i] ?? { kind: "anything", value: "" };
    [kind.value, value.value] = [given.kind, given.value];
    const take = () => {
      values[i] = { kind: kind.value, value: value.value };
      value.hidden = !(kind.value in HINTS);
      value.placeholder = HINTS[kind.value] ?? "";
      value.required = !value.hidden;
      value.setAttribute("aria-label", kind.value === "choice" ? `the words for hole ${i + 1}, with commas between` : `the pattern of hole ${i + 1}`);
      changed();
    };
    kind.addEventListener("change", take);
    value.addEventListener("input", take);
    line.append(`Hole ${i + 1}`, name, kind, value);
    take();
    return line;
  }

  function update(holes) {
    const shape = JSON.stringify(holes.map(({ text }) => text));
    if (box.dataset.shape === shape) return;
    box.dataset.shape = shape;
    count = holes.length;
    box.hidden = count === 0;
    box.querySelector(".list").replaceChildren(...holes.map(row));
  }

  const chosen = () => Array.from({ length: count }, (_, i) => wording(values[i] ?? { kind: "anything" }));
  return {
    update, values: () => values,
    restore: (given) => { values = given; delete box.dataset.shape; },
    request: () => (chosen().some(Boolean) ? { constraints: chosen() } : {}),
  };
}
