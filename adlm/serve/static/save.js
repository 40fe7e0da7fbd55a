// The text to take along: on the clipboard, as a file, or with everything that is known of how it was written.

import { canvasOf, textAt } from "./recording.js";
import { download } from "./share.js";

export async function copyText(recording, frame, button) {
  const before = "Copy";
  try {
    await navigator.clipboard.writeText(textAt(recording, frame));
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.closest(".output").querySelector(".text")); // to be copied by hand
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

export const saveText = (recording, frame) => download(`${textAt(recording, frame)}\n`, "adlm-text.txt", "text/plain");

export function saveJson(recording, frame) {
  const places = Canvas.at(recording, frame);
  const tokens = canvasOf(recording, frame).map(({ id, text, given }, i) => ({ id, text, given, probability: places[i].p }));
  const { name, request, seconds, calls, written } = recording;
  const record = { text: textAt(recording, frame), name, request, seconds, network_calls: calls, tokens_written: written, tokens };
  download(`${JSON.stringify(record, null, 2)}\n`, "adlm-text.json", "application/json");
}
