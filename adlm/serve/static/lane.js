// One column: its settings, the canvas that fills in, and what a reader can do to it.

import { openMenu } from "./menu.js";
import { advanced, begun, canvasOf, continued, finished, requestFor, rewritten } from "./recording.js";
import { copyText, saveJson, saveText } from "./save.js";
import { run } from "./stream.js";

const timeOf = (seconds) => `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
const speedOf = (tokens, seconds) => (tokens / Math.max(seconds, 0.001)).toLocaleString("en", { maximumSignificantDigits: 3 });

// shared() is what all columns ask alike; `variant` is what this one asks otherwise: {label, seed: to be added,
// ask: {block_size}}; changed() is called when a run begins or ends, appeared() when the canvas of a new one is there.
export function mountLane(element, { settings, variant = {}, shared, changed, appeared }) {
  const find = (name) => element.querySelector(name);
  const output = find(".output"), canvas = find(".canvas"), status = find(".status"), problem = find(".problem");
  const goOn = find(".go-on"), anew = find(".anew"), undo = find(".undo");
  let recording = null, player = null, kept = new Set(), past = [], running = null, again = null, drawing = null;
  let rounds = 0; // of continuing: each round draws its own random numbers
  find(".which").textContent = variant.label ?? "";
  find(".which").hidden = !variant.label;

  const blanks = (places) => places.filter(({ text }) => text === null).length;
  const shownCanvas = () => canvasOf(recording, player.at());
  const wholeCanvas = () => canvasOf(recording, player.at(), recording.whole);

  function draw(frame) {
    cancelAnimationFrame(drawing);
    drawing = null;
    output.hidden = false;
    if (player) player.update(recording, frame);
    else player = mountPlayer(canvas, recording, { autoplay: false, choose, mark: (i) => (kept.has(i) ? "kept" : ""), shown: offer });
    if (frame === undefined) offer();
  }

  function drawSoon() { drawing ??= requestAnimationFrame(() => draw()); }

  function offer() {
    if (!player || !recording) return;
    const open = blanks(shownCanvas());
    goOn.disabled = running !== null || open === 0;
    goOn.textContent = open && !running ? `Continue: ${open} blank${open === 1 ? "" : "s"}` : "Continue";
    anew.hidden = kept.size === 0;
    anew.disabled = running !== null;
    undo.hidden = past.length === 0;
    undo.disabled = running !== null;
    const { written, seconds, calls } = recording, passes = `${calls} network call${calls === 1 ? "" : "s"}`;
    find(".speed").textContent = seconds === undefined ? "" : `${speedOf(written, seconds)} tokens per second: ${written} in ${timeOf(seconds)}, ${passes}`;
  }

  function remember() { past = [...past.slice(-49), { recording, kept, frame: player.at() }]; }

  function choose(i) {
    if (running) {
      status.textContent = "Stop the run to change the text.";
      return;
    }
    player.pause();
    const place = shownCanvas()[i], frame = player.at();
    const guesses = recording.frames.slice(0, frame + 1).flatMap((each) => each.guesses).filter(([at]) => at === i).at(-1);
    const suggestions = [...new Set([...(guesses?.[1] ?? []), ...(guesses?.[2] ?? [])].map(([text]) => text))].filter(Canvas.whole);
    const { parts, shown, p } = Canvas.at(recording, frame)[i];
    const items = [], rankings = [["anchor stage", guesses?.[1] ?? []], ["final stage", guesses?.[2] ?? []]];
    const written = place.text !== null;
    if (written && !place.given) items.push(kept.has(i) ? ["Do not keep", () => keep(parts, false)] : ["Keep", () => keep(parts, true)]);
    if (written) items.push(["Mask again", () => write(parts, null)]);
    // A blank is probably a word, if that is what was expected; a character of several tokens is masked first.
    const spaced = written ? place.text.startsWith(" ") : (suggestions[0] ?? " ").startsWith(" ");
    const edit = { label: written ? "Edit" : "Write", act: (text) => write([i], text), suggestions, spaced, value: written ? shown.trim() : "" };
    const sure = p === null ? "" : `written with probability ${Math.round(1000 * p) / 10} %`;
    openMenu(canvas, i, { title: `place ${i + 1}`, items, rankings, sure, write: parts.length > 1 ? null : edit });
  }

  function keep(parts, whether) {
    remember();
    kept = new Set(kept);
    for (const i of parts) if (whether) kept.add(i); else kept.delete(i);
    draw(player.at());
  }

  function write(parts, text) {
    remember();
    const { seconds, calls, written, ...rest } = recording; // these are of a run, which this text is no more
    recording = rewritten(rest, player.at(), parts, text);
    kept = new Set(kept);
    for (const i of parts) if (text === null) kept.delete(i); else kept.add(i);
    draw(recording.frames.length - 1);
    status.textContent = text === null ? "Masked again." : "Written. It will be kept.";
  }

  function takeBack() {
    const before = past.pop();
    ({ recording, kept } = before);
    draw(before.frame);
    if (undo.hidden) canvas.focus();
  }

  function fail(error, retry) {
    again = retry;
    problem.querySelector("p").textContent = error.message;
    problem.hidden = false;
    if (error.wait) wait(error.wait);
  }

  // A busy server says when to come back.
  function wait(seconds) {
    const button = find(".retry"), until = Date.now() + 1000 * seconds;
    (function tick() {
      const left = Math.ceil((until - Date.now()) / 1000);
      button.disabled = left > 0;
      button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
      if (left > 0) setTimeout(tick, 250);
    })();
  }

  async function follow(request, begin) {
    if (running) return null;
    const control = new AbortController();
    let steps = 0, trouble = null, length, done = {};
    running = control;
    problem.hidden = true;
    status.textContent = "Writing.";
    changed();
    offer();
    try {
      for await (const event of run(request, control.signal)) {
        if (event.type === "canvas") {
          const { seconds, calls, written, ...rest } = begin(event);
          recording = { ...rest, request };
          draw(recording.frames.length - 1);
          if (recording.frames.length === 1) appeared();
        } else if (event.type === "step") {
          recording = advanced(recording, event);
          steps += 1;
          drawSoon();
        } else if (event.type === "done") {
          length = event.length;
          done = { seconds: event.seconds, calls: event.calls, written: event.tokens, text: event.text };
          status.textContent = "Done. Click a token to keep it, mask it again or edit it.";
        }
      }
    } catch (error) {
      const after = steps ? ` after ${steps} step${steps === 1 ? "" : "s"}` : "";
      status.textContent = `Stopped${after}.`;
      if (!control.signal.aborted) fail(trouble = error, () => follow(request, begin));
    }
    running = null;
    if (recording) {
      recording = { ...finished(recording, length), ...done };
      draw();
    }
    changed();
    return trouble;
  }

  function start() {
    if (!settings.valid()) return null;
    clear();
    const request = asked();
    if (variant.seed !== undefined) find(".which").textContent = `Seed ${request.seed}`;
    const name = settings.described(request.seed, variant.ask);
    return follow(request, (event) => {
      [past, kept, rounds] = [[], new Set(), 0];
      return { ...begun(event), name };
    });
  }

  // What this column would send.
  function asked() {
    const { common, ask } = shared();
    return { ...common, seed: common.seed + (variant.seed ?? 0), ...settings.request(variant.ask), ...variant.ask, ...ask };
  }

  // What is left of a run before is of no use to the next.
  function clear() {
    problem.hidden = output.hidden = true;
    recording = null;
    status.textContent = "";
  }

  function continueFrom(places) {
    if (!settings.valid()) return;
    const before = recording, frame = player.at(), marked = kept;
    rounds += 1;
    const { common } = shared(), seed = common.seed + (variant.seed ?? 0) + rounds, name = settings.described(seed, variant.ask);
    remember();
    canvas.focus(); // the button is about to be of no use
    follow({ ...common, seed, ...settings.request(variant.ask), ...variant.ask, ...requestFor(places, before.tail) }, (event) => {
      const { recording, moved } = continued(before, frame, places, event);
      kept = new Set([...marked].flatMap(moved));
      return { ...recording, name: `${before.name}, then ${name}` };
    });
  }

  goOn.addEventListener("click", () => continueFrom(wholeCanvas()));
  anew.addEventListener("click", () => {
    const open = { text: null, id: null };
    continueFrom(wholeCanvas().map((place, i) => (place.given || kept.has(i) ? place : open)));
  });
  undo.addEventListener("click", takeBack);
  find(".retry").addEventListener("click", () => again?.());
  find(".copy-text").addEventListener("click", ({ target }) => copyText(recording, player.at(), target));
  find(".as-text").addEventListener("click", () => saveText(recording, player.at()));
  find(".as-json").addEventListener("click", () => saveJson(recording, player.at()));

  return {
    start, settings, clear, asked,
    wait: (whether) => element.classList.toggle("waiting", whether),
    forget: () => { problem.hidden = true; },
    replay: (times) => player.replay(times),
    seconds: () => recording?.frames.at(-1).at ?? 0,
    state: () => recording && { recording, kept: [...kept], frame: player.at() },
    restore(state) {
      recording = state.recording;
      kept = new Set(state.kept);
      draw(state.frame);
      player.show(state.frame);
      offer();
    },
    stop: () => running?.abort(),
    running: () => running !== null,
    recording: () => recording,
  };
}
