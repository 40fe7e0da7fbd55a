// The menu of one place: a few things to do, and a field to write in. Focus goes in, and back to the place at the end.

function make(kind, name, text) {
  const element = document.createElement(kind);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

// items: [[label, act]]; rankings: [[title, [[text, p]]]] and `sure`, which a finger cannot hover over; write: {label,
// value, spaced: whether a space stands before it, suggestions: [text], act(text)}, or null where nothing can be written
export function openMenu(host, place, { title, items, rankings, sure = "", write }) {
  const menu = make("div", "menu"), list = make("div", "items");
  const cell = () => host.querySelector(`.token[data-place="${place}"]`); // it may be made anew in the meantime
  menu.setAttribute("role", "dialog");
  menu.setAttribute("aria-label", title);
  menu.tabIndex = -1; // what is clicked in it is within it

  function close(back = true) {
    if (!menu.isConnected) return;
    menu.remove();
    removeEventListener("pointerdown", outside, true);
    if (back) cell()?.focus();
  }

  function looked() {
    const columns = make("div", "columns");
    if (sure) columns.append(make("p", "sure", sure));
    for (const [stage, candidates] of rankings) {
      if (!candidates.length) continue;
      const column = make("div");
      column.append(make("h4", "", stage));
      for (const [text, p] of candidates) column.append(make("p", "", `${text.trim() || "␣"} ${Math.round(100 * p)} %`));
      columns.append(column);
    }
    return columns.childElementCount ? [columns] : [];
  }

  function outside(event) { if (!menu.contains(event.target)) close(false); }
  function finish(act, ...values) { act(...values); close(); }

  function field() {
    const form = make("form"), input = make("input"), use = make("button", "primary", "Write");
    const spaced = make("label", "check"), space = make("input");
    Object.assign(space, { type: "checkbox", checked: write.spaced });
    spaced.append(space, "after a space");
    Object.assign(input, { type: "text", value: write.value, maxLength: 200, autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-label", "the text at this position");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = input.value.trim();
      if (text) finish(write.act, `${space.checked ? " " : ""}${text}`);
    });
    form.append(input, use, spaced);
    menu.replaceChildren(form);
    if (write.suggestions.length) {
      const others = make("div", "suggestions");
      for (const text of write.suggestions) {
        const button = make("button", "", text.trim() || "␣");
        button.type = "button";
        button.addEventListener("click", () => finish(write.act, text));
        others.append(button);
      }
      menu.append(make("p", "help", "Expected here:"), others);
    }
    put();
    input.focus();
    input.select();
  }

  for (const [label, act] of [...items, ...(write ? [[write.label, null]] : [])]) {
    const button = make("button", "", label);
    button.type = "button";
    button.addEventListener("click", () => (act ? finish(act) : field()));
    list.append(button);
  }

  menu.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the player has keys of its own
    const buttons = [...list.children], by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") close();
    else if (by && list.isConnected)
      buttons[(buttons.indexOf(document.activeElement) + by + buttons.length) % buttons.length].focus();
    else return;
    event.preventDefault();
  });

  // Whoever leaves by Tab is done with it.
  menu.addEventListener("focusout", () => setTimeout(() => { if (!menu.contains(document.activeElement)) close(false); }));

  function put() {
    const around = host.getBoundingClientRect(), box = cell().getBoundingClientRect();
    const room = host.clientWidth - menu.offsetWidth - 8;
    menu.style.setProperty("left", `${Math.max(8, Math.min(room, box.left - around.left - 8))}px`);
    menu.style.setProperty("top", `${box.bottom - around.top + 6}px`);
  }

  host.querySelector(".menu")?.remove();
  menu.append(list, ...looked());
  host.append(menu);
  put();
  list.firstElementChild.focus();
  addEventListener("pointerdown", outside, true);
}
