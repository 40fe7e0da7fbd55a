// One column: its settings, the canvas that fills in, and what a reader can do to it.

import { openMenu } from "./menu.js";
import { advanced, begun, canvasOf, continued, finished, requestFor, rewritten } from "./recording.js";
import { mountSettings } from "./settings.js";
import { run } from "./stream.js";

const GUESSES = 3;

// shared() is what all columns ask alike; changed() is called when a run begins or ends.
export function mountLane(element, { models, shared, changed }) {
  const find = (name) => element.querySelector(name);
  const settings = mountSettings(find(".settings"), models);
  const output = find(".output"), canvas = find(".canvas"), status = find(".status"), problem = find(".problem");
  const goOn = find(".go-on"), anew = find(".anew"), undo = find(".undo");
  let recording = null, player = null, kept = new Set(), past = [], running = null, again = null, drawing = null;
  let rounds = 0; // of going on: each is written by chance of its own

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
    if (!player) return;
    const open = blanks(shownCanvas());
    goOn.disabled = running !== null || open === 0;
    goOn.textContent = open && !running ? `Go on: ${open} blank${open === 1 ? "" : "s"}` : "Go on";
    anew.hidden = kept.size === 0;
    anew.disabled = running !== null;
    undo.hidden = past.length === 0;
    undo.disabled = running !== null;
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
    const suggestions = [...new Set([...(guesses?.[1] ?? []), ...(guesses?.[2] ?? [])].map(([text]) => text))];
    const items = [], rankings = [["anchor stage", guesses?.[1] ?? []], ["final stage", guesses?.[2] ?? []]];
    const written = place.text !== null;
    if (written && !place.given) items.push(kept.has(i) ? ["Do not keep", () => keep(i, false)] : ["Keep", () => keep(i, true)]);
    if (written) items.push(["Mask again", () => write(i, null)]);
    const label = written ? "Edit" : "Write", act = (text) => write(i, text);
    openMenu(canvas, i, { title: `place ${i + 1}`, items, rankings, write: { label, act, suggestions, value: place.text ?? " " } });
  }

  function keep(i, whether) {
    remember();
    kept = new Set(kept);
    if (whether) kept.add(i); else kept.delete(i);
    draw(player.at());
  }

  function write(i, text) {
    remember();
    recording = rewritten(recording, player.at(), i, text);
    kept = new Set(kept);
    if (text === null) kept.delete(i); else kept.add(i);
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
    let steps = 0, trouble = null, length;
    running = control;
    problem.hidden = true;
    status.textContent = "Writing.";
    changed();
    offer();
    try {
      for await (const event of run({ ...request, predictions: GUESSES }, control.signal)) {
        if (event.type === "canvas") {
          recording = begin(event);
          draw(recording.frames.length - 1);
        } else if (event.type === "step") {
          recording = advanced(recording, event);
          steps += 1;
          drawSoon();
        } else if (event.type === "done") {
          length = event.length;
          const calls = `${event.calls} network call${event.calls === 1 ? "" : "s"}`;
          status.textContent = `Done in ${event.seconds.toFixed(event.seconds < 10 ? 1 : 0)} s, ${calls}. Click a token to keep it, mask it again or edit it.`;
        }
      }
    } catch (error) {
      const after = steps ? ` after ${steps} step${steps === 1 ? "" : "s"}` : "";
      status.textContent = `Stopped${after}.`;
      if (!control.signal.aborted) fail(trouble = error, () => follow(request, begin));
    }
    running = null;
    if (recording) {
      recording = finished(recording, length);
      draw();
    }
    changed();
    return trouble;
  }

  function start() {
    if (!settings.valid()) return null;
    const { common, ask } = shared(), name = settings.described(common.seed);
    return follow({ ...common, ...settings.request(), ...ask }, (event) => {
      [past, kept, rounds] = [[], new Set(), 0];
      return { ...begun(event), name };
    });
  }

  function continueFrom(places) {
    if (!settings.valid()) return;
    const before = recording, frame = player.at(), marked = kept;
    rounds += 1;
    const seed = shared().common.seed + rounds, name = settings.described(seed);
    remember();
    canvas.focus(); // the button is about to be of no use
    follow({ seed, ...settings.request(), ...requestFor(places, before.tail) }, (event) => {
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

  return {
    start, settings,
    stop: () => running?.abort(),
    running: () => running !== null,
    recording: () => recording,
  };
}
