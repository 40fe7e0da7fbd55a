// A run as a value: what `mountPlayer` plays, with the numbers of the tokens beside their texts, so that any frame of
// it can be gone on from. Frames are the model's steps and what the reader changed in between.
//
// {length, given: [[i, text, id]], anchors: [i], frames: [{tokens: [[i, text or null, id or null]], guesses, byReader}],
//  expected, anchored, tail: [id]}

const BREAK = "⏎", SPECIAL = "·"; // how the server writes a line's end, and a token that is no text

export function begun(event) {
  const length = event.tokens.findLastIndex(([id, text]) => id === null || text !== SPECIAL) + 1;
  const tokens = event.tokens.slice(0, length).map(([id, text], i) => [i, id === null ? null : text, id]);
  const tail = event.tokens.slice(length).map(([id]) => id); // what fills up a row is not worth looking at
  const given = tokens.filter(([, text]) => text !== null);
  const blanks = tokens.length - given.length;
  return {
    length, tail, given, anchors: [], frames: [{ tokens: [], guesses: [] }],
    expected: Math.min(event.steps ?? blanks, blanks), // most samplers write something in each frame
    anchored: event.anchored,
  };
}

// A step tells what was expected before it, which belongs to the frame that was looked at then.
export function advanced(recording, event) {
  const tokens = event.changes.map(([i, id, text]) => [i, id === null ? null : text, id]);
  const frames = [...recording.frames], seen = frames.pop();
  frames.push({ ...seen, guesses: [...seen.guesses, ...event.guesses] });
  if (tokens.length) frames.push({ tokens, guesses: [] });
  return { ...recording, anchors: event.anchors, frames };
}

export const finished = (recording) => ({ ...recording, expected: undefined });

// What stands at each place after a frame.
export function canvasOf(recording, frame) {
  const canvas = Array.from({ length: recording.length }, () => ({ text: null, id: null, given: false }));
  for (const [i, text, id] of recording.given) canvas[i] = { text, id, given: true };
  for (const { tokens } of recording.frames.slice(0, frame + 1))
    for (const [i, text, id] of tokens) if (canvas[i]) canvas[i] = { text, id, given: false };
  return canvas;
}

// The reader writes at a place, or masks it with null; what came after the frame is dropped.
export function rewritten(recording, frame, place, text) {
  const frames = recording.frames.slice(0, frame + 1);
  const token = [place, text, null];
  if (frames.at(-1).byReader) {
    const open = frames.pop();
    frames.push({ ...open, tokens: [...open.tokens.filter(([i]) => i !== place), token] });
  } else frames.push({ tokens: [token], guesses: [], byReader: true });
  return finished({ ...recording, frames });
}

// What is sent to go on from a canvas. A text that the reader typed has no number, so the canvas is sent as a text with
// holes, and the server finds the tokens.
export function requestFor(canvas, tail) {
  if (canvas.every(({ text, id }) => text === null || id !== null))
    return { canvas: [...canvas.map(({ id }) => id), ...tail] };
  let text = "", hole = 0;
  const close = () => { if (hole) text += `[MASK:${hole}]`; hole = 0; };
  for (const place of canvas) {
    if (place.text === null) { hole += 1; continue; }
    close();
    if (place.text !== SPECIAL) text += place.text.replaceAll(BREAK, "\n");
  }
  close();
  return { text };
}

// The story goes on where the server begins with the canvas that was sent; otherwise a new one begins.
export function continued(recording, frame, canvas, event) {
  const next = begun(event), now = canvasOf(next, 0);
  const same = now.length === canvas.length && now.every(({ text }, i) => text === canvas[i].text);
  if (!same) return next;
  const before = canvasOf(recording, frame);
  const masked = before.flatMap((place, i) => (place.text !== null && canvas[i].text === null ? [[i, null, null]] : []));
  const frames = recording.frames.slice(0, frame + 1);
  const found = now.flatMap(({ text, id }, i) => (before[i].id === null && id !== null ? [[i, text, id]] : []));
  if (found.length) frames.push({ ...frames.pop(), tokens: named(recording.frames[frame].tokens, found) });
  if (masked.length) frames.push({ tokens: masked, guesses: [], byReader: true });
  return { ...recording, frames, tail: next.tail, anchored: next.anchored, expected: frames.length - 1 + next.expected };
}

// Tokens the reader typed, with the numbers the server found for them.
function named(tokens, found) {
  const ids = new Map(found.map(([i, , id]) => [i, id]));
  return tokens.map(([i, text, id]) => [i, text, id ?? (text === null ? null : ids.get(i) ?? null)]);
}

// Only what the player reads.
export function playable({ length, given, anchors, frames }) {
  return {
    length, anchors, given: given.map(([i, text]) => [i, text]),
    frames: frames.map(({ tokens, guesses }) => ({ tokens: tokens.map(([i, text]) => [i, text]), guesses })),
  };
}
