// What a reload keeps: prompt, settings and the last results, in this tab alone. The key is never kept.

const NAME = "adlm-studio";

export function stored() {
  try { return JSON.parse(sessionStorage.getItem(NAME)) ?? {}; } catch { return {}; }
}

// Long runs may be more than a browser keeps: then what was expected at blanks goes first, then the results.
export function store(state) {
  const bare = (result) => result && { ...result, recording: { ...result.recording, frames: result.recording.frames.map((frame) => ({ ...frame, guesses: [] })) } };
  for (const results of [state.results, state.results.map(bare), []]) {
    try {
      sessionStorage.setItem(NAME, JSON.stringify({ ...state, results }));
      return;
    } catch { /* the next is smaller */ }
  }
}
