// A run as a value: what `mountPlayer` plays, with the numbers of the tokens beside their texts, so that any frame of
// it can be gone on from. Frames are the model's steps and what the reader changed in between.
//
// {length, whole, given: [[i, text, id]], anchors: [i], earlier: [i], frames: [{tokens: [[i, text or null, id or null]],
//  guesses, written, at, byReader}], blocks, expected, anchored, foreseen, tail: [id], name, text}
// Of the `whole` places of a row, `length` are shown; `tail` are those behind them, of which nothing is shown ever.
// `earlier` are the anchors of runs that this one goes on from. `text` is the server's, while nothing was changed.

const BREAK = "⏎", SPECIAL = "·"; // how the server writes a line's end, and a token that is no text

// What fills up a row is not worth looking at, unless it was written before: `least` places are kept.
export function begun(event, least = 0) {
  const whole = Math.max(least, event.tokens.findLastIndex(([id, text]) => id === null || text !== SPECIAL) + 1);
  const tokens = event.tokens.slice(0, whole).map(([id, text], i) => [i, id === null ? null : text, id]);
  const tail = event.tokens.slice(whole).map(([id]) => id);
  const given = tokens.filter(([, text]) => text !== null);
  const blanks = tokens.length - given.length;
  return {
    length: whole, whole, tail, given, anchors: [], earlier: [], frames: [{ tokens: [], guesses: [], written: [], at: 0 }],
    expected: Math.min(event.steps ?? blanks, blanks), // most samplers write something in each frame
    anchored: event.anchored, foreseen: event.anchored, blocks: event.blocks ?? null, since: 0,
  };
}

// A step tells what was expected before it, which belongs to the frame that was looked at then.
export function advanced(recording, event) {
  const tokens = event.changes.map(([i, id, text]) => [i, id === null ? null : text, id]);
  const frames = [...recording.frames], seen = frames.pop();
  frames.push({ ...seen, guesses: [...seen.guesses, ...event.predictions] });
  if (tokens.length) frames.push({ tokens, guesses: [], written: event.probabilities ?? [], at: recording.since + event.seconds });
  const anchors = recording.anchored ? [...recording.earlier, ...event.anchors] : [];
  return { ...recording, anchors, frames };
}

// The server says how long the text has become: blanks behind its end are no part of it.
export const finished = (recording, length = recording.length) =>
  ({ ...recording, length: Math.min(length, recording.whole), expected: undefined });

const lastTime = (frames) => Math.max(0, ...frames.map(({ at }) => at ?? 0));

// What stands at each place after a frame: at those that are shown, or at all.
export function canvasOf(recording, frame, length = recording.length) {
  const canvas = Array.from({ length }, () => ({ text: null, id: null, given: false }));
  for (const [i, text, id] of recording.given) if (canvas[i]) canvas[i] = { text, id, given: true };
  for (const { tokens } of recording.frames.slice(0, frame + 1))
    for (const [i, text, id] of tokens) if (canvas[i]) canvas[i] = { text, id, given: false };
  return canvas;
}

// The reader writes at some places, or masks them with null; what came after the frame is dropped.
export function rewritten(recording, frame, places, text) {
  const frames = recording.frames.slice(0, frame + 1);
  const tokens = places.map((place) => [place, text, null]);
  if (frames.at(-1).byReader) {
    const open = frames.pop();
    frames.push({ ...open, tokens: [...open.tokens.filter(([i]) => !places.includes(i)), ...tokens] });
  } else frames.push({ tokens, guesses: [], written: [], byReader: true });
  return finished({ ...recording, frames, text: undefined });
}

const typed = ({ text, id }) => text !== null && id === null;

// What is sent to go on from a canvas: numbers, and what the reader typed as text, for the server to find its tokens.
export function requestFor(canvas, tail) {
  const places = canvas.map((place) => (typed(place) ? place.text.replaceAll(BREAK, "\n") : place.id));
  return { canvas: [...places, ...tail] };
}

// The story goes on with the canvas that was sent. A text that was typed may have become several tokens, behind which
// all places move: `moved(i)` are those that a place has become.
export function continued(recording, frame, canvas, event) {
  const found = new Map(), starts = [];
  let to = 0;
  canvas.forEach((place, i) => {
    const count = typed(place) ? event.typed?.[found.size] ?? 1 : 1;
    if (typed(place)) found.set(i, event.tokens.slice(to, to + count).map(([id, text]) => [text, id]));
    starts.push(to);
    to += count;
  });
  const moved = (i) => (found.get(i) ?? [0]).map((_, k) => starts[i] + k);
  const next = begun(event, to);
  if (canvas.some(({ id }, i) => id !== null && event.tokens[starts[i]]?.[0] !== id)) return { recording: next, moved };

  const before = canvasOf(recording, frame, recording.whole);
  const named = ([i, text, id]) => (typed({ text, id }) && found.has(i)
    ? found.get(i).map(([text, id], k) => [starts[i] + k, text, id]) : [[starts[i], text, id]]);
  const frames = recording.frames.slice(0, frame + 1).map((each) => ({
    ...each, tokens: each.tokens.flatMap(named), guesses: each.guesses.map(([i, ...rankings]) => [starts[i], ...rankings]),
    written: each.written.map(([i, p]) => [starts[i], p]),
  }));
  const earlier = recording.anchors.filter((i) => canvas[i] && canvas[i].id !== null).flatMap(moved);
  const masked = before.flatMap(({ text }, i) => (text !== null && canvas[i].text === null ? [[starts[i], null, null]] : []));
  if (masked.length) frames.push({ tokens: masked, guesses: [], written: [], byReader: true });
  return {
    moved,
    recording: {
      ...recording, frames, length: next.length, whole: next.whole, tail: next.tail, anchored: next.anchored,
      blocks: next.blocks, since: lastTime(frames), text: undefined,
      given: recording.given.map(([i, text, id]) => [starts[i], text, id]), anchors: earlier, earlier,
      expected: frames.length - 1 + next.expected,
    },
  };
}

// Only what the player reads.
export function playable({ length, given, anchors, frames, foreseen, blocks }) {
  return {
    length, anchors, foreseen, blocks, given: given.map(([i, text]) => [i, text]),
    frames: frames.map(({ tokens, ...rest }) => ({ ...rest, tokens: tokens.map(([i, text]) => [i, text]) })),
  };
}

// The text after a frame: the server's own where it is the last one, since it knows what cannot be shown.
export const textAt = (recording, frame) =>
  (recording.text !== undefined && frame >= recording.frames.length - 1 ? recording.text : Canvas.textOf(Canvas.at(recording, frame)).trim());
