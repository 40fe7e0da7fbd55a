// The prompt: a plain text field over a mirror of itself that draws holes as chips. Editing, undoing and pasting are
// the field's own, and what is typed is never anything but text.

const HOLE = /\[MASK(?::\d+(?:-\d+)?)?\]/g;

export function mountPrompt(box, changed) {
  const field = box.querySelector("textarea"), mirror = box.querySelector(".mirror");

  function draw() {
    const parts = [];
    let from = 0;
    for (const found of field.value.matchAll(HOLE)) {
      const chip = document.createElement("span");
      chip.className = "hole";
      chip.textContent = found[0];
      parts.push(field.value.slice(from, found.index), chip);
      from = found.index + found[0].length;
    }
    mirror.replaceChildren(...parts, `${field.value.slice(from)}\u200b`);
    changed(hasHoles());
  }

  function set(text) {
    field.value = text;
    draw();
  }

  function addHole(size) {
    field.setRangeText(`[MASK:${size}]`, field.selectionStart, field.selectionEnd, "end");
    draw();
    field.focus();
  }

  const hasHoles = () => field.value.search(HOLE) >= 0;
  field.addEventListener("input", draw);
  field.addEventListener("scroll", () => { mirror.scrollTop = field.scrollTop; });
  draw();
  return { field, set, addHole, hasHoles, request: () => (hasHoles() ? { text: field.value } : { prompt: field.value }) };
}
