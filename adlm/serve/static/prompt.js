// The prompt: a plain text field over a mirror of itself that draws holes as chips. Editing, undoing and pasting are
// the field's own, and what is typed is never anything but text.

const HOLE = /^\[MASK(?::([1-9]\d{0,3})(?:-([1-9]\d{0,3}))?)?\]$/;
const LIKE_A_HOLE = /\[\s*mask(?:\s*:[\d\s-]*)?\]?/gi;

function holeIn(text) {
  const found = HOLE.exec(text);
  return found !== null && !(found[2] && Number(found[1]) > Number(found[2]));
}

export function mountPrompt(box, changed) {
  const field = box.querySelector("textarea"), mirror = box.querySelector(".mirror");

  function draw() {
    const parts = [];
    let from = 0;
    for (const { text, index, good } of holes()) {
      const chip = document.createElement("span");
      chip.className = good ? "hole" : "hole bad";
      chip.textContent = text;
      parts.push(field.value.slice(from, index), chip);
      from = index + text.length;
    }
    mirror.replaceChildren(...parts, `${field.value.slice(from)}\u200b`);
    changed();
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

  const holes = () => [...field.value.matchAll(LIKE_A_HOLE)].map((found) => ({ text: found[0], index: found.index, good: holeIn(found[0]) }));
  const good = () => holes().filter((hole) => hole.good);
  field.addEventListener("input", draw);
  field.addEventListener("scroll", () => { mirror.scrollTop = field.scrollTop; });
  return {
    field, set, addHole, draw, good, wrong: () => holes().filter((hole) => !hole.good),
    request: () => (good().length ? { text: field.value } : { prompt: field.value }),
  };
}
