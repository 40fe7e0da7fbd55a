// Prompts to begin with: as buttons beside the prompt, and as cards where nothing was written yet.

export const PRESETS = [
  { key: "story", title: "Write a story", text: "Once upon a time there was a little" },
  { key: "holes", title: "Fill the blanks", text: "Lily found a [MASK:3] in the garden. [MASK:16] She smiled and went home." },
  { key: "continue", title: "Continue", text: "Tom and his dog walked to the river. There they saw a big" },
];

function button(name, act) {
  const element = document.createElement("button");
  Object.assign(element, { type: "button", className: name });
  element.addEventListener("click", act);
  return element;
}

export function presetFor({ key, title, text }, act) {
  const element = button("preset", act);
  element.dataset.preset = key;
  element.textContent = title;
  element.title = text;
  return element;
}

export function exampleFor({ title, text }, act) {
  const element = button("example", act), heading = document.createElement("strong"), body = document.createElement("span"), parts = text.split(/\[MASK:(\d+)\]/);
  heading.textContent = title;
  element.append(heading, body);
  element.setAttribute("aria-label", `run: ${text}`);
  parts.forEach((part, i) => {
    if (i % 2 === 0) { body.append(part); return; }
    const hole = document.createElement("span");
    hole.className = "hole";
    hole.style.setProperty("--n", part);
    body.append(hole);
  });
  return element;
}
