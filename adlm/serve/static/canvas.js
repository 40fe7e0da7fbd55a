// What stands at each place of a text after a frame, as it is shown: characters that are made of several tokens are
// joined, and blocks are told from each other. `Canvas.at(data, frame)` gives the places.
"use strict";

const Canvas = (() => {
  const BYTE = /\\x[89a-f][0-9a-f]/; // how the server writes a byte of a character whose other bytes are elsewhere
  const BYTES = /(?:\\x[89a-f][0-9a-f])+/g, FIRST = /^\\x[89a-f][0-9a-f]/, LAST = /\\x[89a-f][0-9a-f]$/;
  const UNFINISHED = "◌", BREAK = "⏎", SPECIAL = "·";

  function decoded(bytes) {
    const numbers = bytes.split("\\x").slice(1).map((byte) => parseInt(byte, 16));
    return new TextDecoder().decode(new Uint8Array(numbers)).replace(/\ufffd+/g, UNFINISHED);
  }

  // Each place's `shown`; the characters of several places are shown at the first of them, whose `parts` they are.
  function join(places) {
    for (let i = 0; i < places.length;) {
      const parts = [i];
      let text = places[i].text;
      while (text !== null && LAST.test(text) && FIRST.test(places[i + parts.length]?.text ?? "")) {
        text += places[i + parts.length].text;
        parts.push(i + parts.length);
      }
      const shown = text === null ? null : text.replace(BYTES, decoded);
      for (const part of parts) Object.assign(places[part], { shown: part === i ? shown : "", parts, joined: part !== i });
      i += parts.length;
    }
    return places;
  }

  function at(data, k) {
    const places = Array.from({ length: data.length }, () => ({ text: null, since: -1, anchor: [], final: [], taken: false, p: null }));
    for (const [i, text] of data.given) if (places[i]) places[i].text = text;
    for (let f = 0; f <= k && f < data.frames.length; f++) {
      const { tokens, guesses, written = [] } = data.frames[f];
      for (const [i, text] of tokens) if (places[i]) Object.assign(places[i], { text, since: f, taken: text === null && f === k, p: null });
      for (const [i, anchor, final] of guesses) if (places[i]) Object.assign(places[i], { anchor, final });
      for (const [i, p] of written) if (places[i]) places[i].p = p;
    }
    return join(places);
  }

  // The text of some places, as it is written: no signs for line ends and special tokens, holes where there are blanks.
  function textOf(places) {
    let text = "", blanks = 0;
    const close = () => {
      if (blanks) text += `${text && !/\s$/.test(text) ? " " : ""}[MASK:${blanks}]`;
      blanks = 0;
    };
    for (const { shown } of places) {
      if (shown === null) { blanks += 1; continue; }
      close();
      if (shown !== SPECIAL) text += shown.replaceAll(BREAK, "\n");
    }
    close();
    return text;
  }

  // Which block each place is in: null where nothing is written in blocks. `now` is the one being written.
  function blocksOf(data, places) {
    const { size, first } = data.blocks ?? {};
    if (!(size > 1)) return null;
    const number = (i) => Math.floor((i - first) / size);
    const given = new Set(data.given.map(([i]) => i));
    const open = places.findIndex((_, i) => !given.has(i)), blank = places.findIndex(({ text }) => text === null);
    if (open < 0) return null;
    const base = number(open), last = number(places.length - 1);
    const now = blank < 0 ? last + 1 : number(blank);
    return {
      count: last - base + 1, now: Math.min(now - base + 1, last - base + 1), finished: blank < 0,
      of: (i) => (given.has(i) || number(i) > now ? "" : number(i) < now ? "block-done" : "block-now"),
      starts: (i) => number(i) > base && number(i) !== number(i - 1),
    };
  }

  return { at, textOf, blocksOf, whole: (text) => !BYTE.test(text), readable: (text) => text.replace(BYTES, decoded) };
})();
