// What is probably wrong with the prompt, said before it is sent: holes that are none, and words the model cannot read.

import { post } from "./stream.js";

const PAUSE = 400; // milliseconds of not typing, before the server is asked
const HOLES = /\[MASK(?::\d+(?:-\d+)?)?\]/g;

const list = (texts) => texts.slice(0, 8).map((text) => `“${text.trim()}”`).join(", ");

export function mountWarnings(element, prompt) {
  let timer = null, unknown = [], checked = "";

  function show() {
    const holes = prompt.wrong().map(({ text }) => text);
    const said = [
      holes.length ? `${list(holes)} ${holes.length === 1 ? "is not a hole" : "are not holes"}: write [MASK] for one token, [MASK:3] for three, [MASK:2-4] for two to four.` : "",
      unknown.length ? `The model has no token for ${list(unknown)}.` : "",
    ].filter(Boolean).join(" ");
    element.hidden = !said;
    if (element.textContent !== said) element.textContent = said;
  }

  async function check(model) {
    const text = prompt.field.value.replace(HOLES, " ").replace(/\s+/g, " ").trim(), asked = `${model.name}\n${text}`;
    if (asked === checked) return;
    checked = asked;
    const found = await post("tokenize", { text, model: model.name }).catch(() => ({ unknown: [] }));
    if (checked !== asked) return; // something else was typed meanwhile
    unknown = found.unknown.filter((part) => part.trim());
    show();
  }

  return function warn(model) {
    show();
    clearTimeout(timer);
    if (model && model.knows_all_words === false) timer = setTimeout(() => check(model), PAUSE);
  };
}
