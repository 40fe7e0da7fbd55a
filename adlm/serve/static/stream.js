// What the server says: answers as values, a run as its events, and everything that can go wrong as a `Trouble` whose
// message can be shown as it is.

export class Trouble extends Error {
  constructor(message, { status = 0, wait = null } = {}) {
    super(message);
    Object.assign(this, { status, wait });
  }
}

let key = "";
export const useKey = (text) => { key = text; };
export const hasKey = () => key !== "";
const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

async function reach(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const error = await response.json().then((body) => body.error, () => null);
  const reason = typeof error?.message === "string" ? error.message : `The server answered with ${status}.`;
  if (status === 429) {
    const wait = Number(response.headers.get("Retry-After")) || 1;
    return new Trouble(`The server is busy: ${reason}`, { status, wait });
  }
  return new Trouble(error?.param ? `${reason} (${error.param})` : reason, { status });
}

export const ask = async (path) => (await reach(path)).json();

const sent = (request) => ({ method: "POST", body: JSON.stringify(request), headers: { "Content-Type": "application/json" } });
export const post = async (path, request) => (await reach(path, sent(request))).json();

// The events of a run up to the last, "done". A stream that ends without it was cut off.
export async function* run(request, signal) {
  const response = await reach("v1/generate", { ...sent(request), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:") || line.slice(5).trim() === "[DONE]") continue;
        const event = JSON.parse(line.slice(5));
        if (event.type === "error") throw new Trouble(event.error?.message ?? "The server stopped the run.");
        yield event;
        if (event.type === "done") return;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
    throw new Trouble("The connection was lost.");
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already
  }
  throw new Trouble("The connection was lost.");
}
