// A text as it appears, to be played. `mountPlayer(element, data)` fills the element. It needs canvas.js.
//
// data: {length, given: [[i, text]], anchors: [i], frames: [{tokens: [[i, text or null]],
//        guesses: [[i, [[text, p]] of the anchor stage, [[text, p]] of the final stage]],
//        written: [[i, p]], the probability of what was written, at: seconds since the start}]}
//       blocks: {size, first}, where the text is written block by block
//       foreseen: whether anchors are only those that the anchor stage expected
//       and for a text that is still being written {expected: its last frame, anchored: whether there will be anchors}
// options: {choose(place, cell): on a click or Enter, mark(place): a further class, shown(frame), autoplay: false to wait}
// Returned: {show(frame), update(data, frame), pause(), at(), replay(times)}. `update` takes the data as they have
// become; whoever is at the end stays there. `replay` plays as it happened, so many times slower.
// Whatever a model wrote goes into the page as textContent and nothing else.
"use strict";

const mountPlayer = (() => {
  const SPEEDS = [0.5, 1, 2, 4];
  const PASS = 9000; // milliseconds from the first frame to the last, where frames are neither few nor many
  const WORD = 18; // letters that stay together on a line
  const OPEN = "\u2007\u2007\u2007"; // as wide as a place of which nothing is known
  const ICONS = {
    play: "M7 4.5v15l13-7.5z", pause: "M7 5h3.6v14H7zM13.4 5H17v14h-3.6z",
    back: "M6 5h2.6v14H6zM19 5v14L9.5 12z", forward: "M15.4 5H18v14h-2.6zM5 5v14l9.5-7z",
  };

  function make(kind, name, text) {
    const element = document.createElement(kind);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  }

  function button(name, label, act) {
    const element = make("button", name);
    element.type = "button";
    element.title = label;
    element.setAttribute("aria-label", label);
    element.append(icon(name));
    element.addEventListener("click", act);
    return element;
  }

  const percent = (p) => (p >= 0.995 ? "100 %" : p < 0.01 ? "< 1 %" : `${Math.round(100 * p)} %`);
  const bare = (text) => text.trim() || "␣";

  // Places, grouped so that a word and its full stop stay on one line; as wide as what will stand there in the end.
  function layOut(text, last) {
    const cells = [];
    const mean = last.reduce((sum, place) => sum + bare(place.shown ?? "").length, 0) / Math.max(1, last.length);
    text.classList.toggle("letters", mean < 1.6 && last.some((place) => place.text !== null));
    text.replaceChildren();
    let word = null, letters = 0;
    last.forEach((place, i) => {
      const final = place.shown ?? "";
      const apart = final.startsWith(" ") || (!final.trim() && !place.joined);
      if (!word || apart || letters + final.length > WORD) {
        if (word && apart) text.append(" ");
        word = make("span", "word");
        text.append(word);
        letters = 0;
      }
      letters += final.length;
      const cell = make("span", "token"), shown = make("span", "shown");
      const size = make("span", "size", final.trim() || (place.text === null ? OPEN : "\u00a0"));
      size.setAttribute("aria-hidden", "true");
      cell.tabIndex = i ? -1 : 0;
      cell.dataset.place = i;
      cell.setAttribute("role", "button");
      cell.dir = "auto";
      cell.append(size, shown);
      word.append(cell);
      cells.push({ cell, shown, state: "" });
      if (final.includes("⏎")) {
        text.append(make("br"));
        word = null;
      }
    });
    return cells;
  }

  function ranking(title, candidates) {
    const column = make("div", "ranking");
    column.append(make("h4", "", title));
    for (const [text, p] of candidates) {
      const row = make("div", "candidate"), bar = make("span", "bar"), fill = make("span", "fill");
      const name = make("span", "name", bare(text));
      name.dir = "auto";
      fill.style.setProperty("--p", p);
      bar.append(fill);
      row.append(name, bar, make("span", "share", percent(p)));
      column.append(row);
    }
    return column;
  }

  function legend(data) {
    const list = make("p", "legend");
    const ramp = make("span", "ramp");
    ramp.setAttribute("aria-hidden", "true");
    const time = make("span", "entry");
    time.append("written early", ramp, "late");
    const blank = make("span", "entry"), block = make("span", "block", "guess");
    blank.append(block, "masked, with the most likely token");
    list.append(time, blank);
    if (data.blocks?.size > 1) {
      const now = make("span", "entry"), done = make("span", "entry");
      now.append(make("span", "block block-now", "block"), "being written");
      done.append(make("span", "block block-done", "block"), "finished");
      list.append(now, done);
    }
    if (data.anchors.length || data.anchored) {
      const anchor = make("span", "entry");
      anchor.append(make("span", "sample", "anchor"), data.foreseen ? "token that the anchor stage predicted" : "token by the model's rule");
      list.append(anchor);
    }
    return list;
  }

  return function mountPlayer(element, data, { choose = null, mark = () => "", shown = () => {}, autoplay = true } = {}) {
    let end, last, anchors, cells, shape = null;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let at = 0, timer = null, speed = 1, slower = null, looked = null, places = [], keys = null;

    const text = make("div", "text"), panel = make("div", "panel"), controls = make("div", "controls");
    text.setAttribute("role", "group");
    text.setAttribute("aria-label", "the text, token by token");
    panel.setAttribute("role", "status");
    panel.hidden = true;

    const back = button("back", "one step back", () => step(-1));
    const toggle = button("play", "play", () => (timer === null ? play() : pause()));
    const forward = button("forward", "one step forward", () => step(1));
    const slider = make("input", "slider");
    Object.assign(slider, { type: "range", min: 0, step: 1, value: 0 });
    slider.setAttribute("aria-label", "frame");
    slider.addEventListener("input", () => { pause(); show(Number(slider.value)); });
    const count = make("span", "count");
    const pace = make("select", "pace");
    pace.setAttribute("aria-label", "speed");
    for (const times of SPEEDS) pace.append(new Option(`${times} ×`, times, times === 1, times === 1));
    pace.addEventListener("change", () => { speed = Number(pace.value); if (timer !== null) { stop(); run(); } });
    controls.append(back, toggle, forward, slider, count, pace);

    function draw(cell, place, i, blocks) {
      const masked = place.text === null;
      const guess = masked ? (place.anchor[0] ?? place.final[0] ?? null) : null;
      const fresh = !masked && at > 0 && place.since === at;
      const when = Math.max(0, place.since - 1) / Math.max(1, (data.expected ?? end) - 1);
      const anchored = !masked && anchors.has(i) && place.text === last[i].text, more = masked ? "" : mark(i);
      const block = blocks ? [blocks.of(i), blocks.starts(i) ? "block-start" : ""].filter(Boolean) : [];
      const state = JSON.stringify([place.shown, place.joined, when, place.taken, fresh, guess, anchored, more, block]);
      if (cell.state === state) return;
      cell.state = state;
      const name = ["token", ...block];
      if (place.joined) name.push("joined");
      if (!masked && !place.shown.trim()) name.push("space");
      if (masked) name.push("masked"); else name.push(place.since < 0 ? "given" : "written");
      if (anchored) name.push("anchor");
      if (place.taken) name.push("taken");
      if (fresh) name.push("fresh");
      if (more) name.push(more);
      cell.cell.className = name.join(" ");
      cell.shown.textContent = masked ? (guess ? Canvas.readable(bare(guess[0])) : "") : place.shown.trim() || "\u00a0";
      cell.cell.style.setProperty("--t", Math.min(1, when));
      cell.cell.style.setProperty("--p", guess ? guess[1] : 0);
      const spoken = masked ? (guess ? `masked, perhaps ${bare(guess[0])}` : "masked") : bare(place.shown);
      const said = [spoken, anchored ? "an anchor" : "", more, masked && block[0] === "block-now" ? "in the block being written" : ""].filter(Boolean);
      cell.cell.setAttribute("aria-label", said.join(", "));
    }

    function show(k) {
      at = Math.min(end, Math.max(0, k));
      places = Canvas.at(data, at);
      const blocks = Canvas.blocksOf(data, places);
      cells.forEach((cell, i) => draw(cell, places[i], i, blocks));
      const open = places.filter((place, i) => last[i].since >= 0 || last[i].text === null);
      const done = open.filter((place) => place.text !== null).length;
      const block = !blocks ? "" : blocks.finished ? ` · ${blocks.count} block${blocks.count === 1 ? "" : "s"}` : ` · block ${blocks.now} of ${blocks.count}`;
      count.textContent = `${at} / ${end} · ${percent(open.length ? done / open.length : 1)}${block}`;
      slider.value = at;
      slider.setAttribute("aria-valuetext", `frame ${at} of ${end}, ${done} of ${open.length} written`);
      back.disabled = at === 0;
      forward.disabled = at === end;
      element.dataset.frame = at;
      if (looked !== null) look(looked);
      shown(at);
    }

    // Cells are made again only where words have changed, so that what is looked at stays.
    function update(now, frame) {
      const following = at === end;
      data = now;
      end = Math.max(0, data.frames.length - 1);
      last = Canvas.at(data, end);
      if (keys !== keysOf(data)) {
        keys = keysOf(data);
        legends.replaceChildren(legend(data));
      }
      anchors = new Set(data.anchors);
      const texts = JSON.stringify(last.map((place) => place.text));
      if (texts !== shape) {
        const focused = text.contains(document.activeElement) ? placeOf(document.activeElement) : null;
        shape = texts;
        cells = layOut(text, last);
        if (choose) for (const { cell } of cells) cell.setAttribute("aria-haspopup", "menu");
        if (focused !== null && cells[focused]) walk(0, focused);
        if (looked !== null && !cells[looked]) lookAway();
      }
      slider.max = end;
      show(frame ?? (following ? end : at));
    }

    const keysOf = ({ blocks, anchors, anchored }) => JSON.stringify([blocks?.size > 1, anchors.length > 0 || Boolean(anchored)]);
    function step(by) { pause(); show(at + by); }
    function wait() {
      if (slower === null) return Math.min(450, Math.max(70, PASS / Math.max(1, end))) / speed;
      const [now, next] = [data.frames[at].at ?? 0, data.frames[at + 1]?.at];
      return (next === undefined ? 300 : Math.max(0, 1000 * slower * (next - now))) / speed;
    }
    function stop() { clearTimeout(timer); timer = null; }
    function run() { timer = setTimeout(() => { show(at + 1); if (at < end) run(); else pause(); }, wait()); }

    function face(name) {
      toggle.replaceChildren(icon(name));
      toggle.title = name;
      toggle.setAttribute("aria-label", name);
      element.classList.toggle("playing", name === "pause");
    }

    function play() {
      if (end === 0) return;
      if (at >= end) show(0);
      stop();
      run();
      face("pause");
    }

    function pause() { stop(); slower = null; face("play"); }

    function replay(times) {
      pause();
      show(0);
      slower = times;
      play();
    }

    function look(i) {
      looked = i;
      const place = places[i], masked = place.text === null;
      const chances = place.parts.map((part) => places[part].p).filter((p) => p !== null).map(percent);
      const sure = chances.length ? ` with probability ${chances.join(", ")}` : "";
      const when = place.since < 0 ? "given" : `written in frame ${place.since}${sure}`;
      const title = masked ? `Token ${i + 1}: masked` : `“${bare(place.shown)}”, ${when}`;
      const heading = make("div", "what", title);
      heading.dir = "auto";
      const columns = make("div", "columns");
      if (place.anchor.length) columns.append(ranking("anchor stage", place.anchor));
      if (place.final.length) columns.append(ranking(place.anchor.length ? "final stage" : "expected", place.final));
      if (!masked && columns.childElementCount) heading.append(make("span", "before", ", expected before"));
      if (!columns.childElementCount) columns.append(make("p", "none", "nothing was expected here yet"));
      panel.replaceChildren(heading, columns);
      panel.hidden = false;
      const box = element.getBoundingClientRect(), cell = cells[i].cell.getBoundingClientRect();
      const room = element.clientWidth - panel.offsetWidth - 8;
      panel.style.setProperty("left", `${Math.max(8, Math.min(room, cell.left - box.left - 12))}px`);
      panel.style.setProperty("top", `${cell.bottom - box.top + 6}px`);
    }

    function lookAway() { looked = null; panel.hidden = true; }

    const placeOf = (target) => (target.closest?.(".token") ? Number(target.closest(".token").dataset.place) : null);
    text.addEventListener("pointerover", (event) => {
      const i = placeOf(event.target);
      if (i === null) lookAway(); else look(i);
    });
    text.addEventListener("pointerleave", lookAway);
    text.addEventListener("focusin", (event) => { const i = placeOf(event.target); if (i !== null) look(i); });
    text.addEventListener("focusout", lookAway);
    if (choose) text.addEventListener("click", (event) => {
      const i = placeOf(event.target);
      if (i !== null) choose(i, cells[i].cell);
    });

    // What is copied is the text, whatever stands around it on the page.
    text.addEventListener("copy", (event) => {
      const chosen = getSelection(), within = cells.flatMap(({ cell }, i) => (chosen.containsNode(cell, true) ? [places[i]] : []));
      if (within.length < 2 || !event.clipboardData) return;
      event.clipboardData.setData("text/plain", Canvas.textOf(within).trim());
      event.preventDefault();
    });

    // The place above or below: the nearest of the next line.
    function line(from, down) {
      const here = cells[from].cell.getBoundingClientRect(), middle = here.left + here.width / 2;
      let best = from, least = Infinity;
      cells.forEach(({ cell }, i) => {
        const box = cell.getBoundingClientRect(), away = down ? box.top - here.top : here.top - box.top;
        if (!box.width || away < here.height / 2) return;
        const far = 1000 * away + Math.abs(box.left + box.width / 2 - middle);
        if (far < least) [best, least] = [i, far];
      });
      return best - from;
    }

    function walk(from, by) {
      let to = Math.min(cells.length - 1, Math.max(0, from + by));
      const { joined, parts } = places[to], behind = parts.at(-1) + 1;
      if (joined) to = by > 0 && behind < cells.length ? behind : parts[0];
      cells[from].cell.tabIndex = -1;
      cells[to].cell.tabIndex = 0;
      cells[to].cell.focus();
    }

    // In the text, arrows go from place to place; elsewhere in the player, from frame to frame.
    element.addEventListener("keydown", (event) => {
      const place = placeOf(event.target), by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const far = place === null ? 0 : { Home: -place, End: cells.length - 1 - place }[event.key];
      const down = { ArrowUp: false, ArrowDown: true }[event.key];
      if (event.altKey || event.ctrlKey || event.metaKey || event.target === pace) return;
      if (event.key === "Escape") lookAway();
      else if (event.key === "Enter" && choose && place !== null) choose(place, cells[place].cell);
      else if (event.key === " " && event.target.tagName !== "BUTTON") { if (timer === null) play(); else pause(); }
      else if (far !== undefined && place !== null) walk(place, far);
      else if (down !== undefined && place !== null) walk(place, line(place, down));
      else if (by && place !== null) walk(place, by);
      else if (by && event.target !== slider) step(by);
      else return;
      event.preventDefault();
    });

    element.classList.add("player");
    element.tabIndex = 0;
    const legends = make("div");
    element.replaceChildren(controls, text, legends, panel);
    update(data, 0);
    if (still) show(end);
    if (!still && autoplay && "IntersectionObserver" in window) {
      const seen = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        seen.disconnect();
        if (at === 0 && timer === null) play();
      }, { threshold: 0.5 });
      seen.observe(controls);
    }
    return { show, update, pause, replay, at: () => at };
  };
})();
