// A request as others would send it: with curl, and with Python.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const filled = (request) => Object.fromEntries(Object.entries(request).filter(([, value]) => value !== null && value !== undefined));

function python(value) {
  if (value === null) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

// With holes it is /v1/infill, otherwise /v1/completions: the same seed gives the same text as on this page.
export function codeFor(request, { keyed }) {
  const { predictions, ...asked } = filled(request);
  const [route, answer] = asked.text === undefined ? ["completions", '["choices"][0]["text"]'] : ["infill", '["texts"][0]'];
  const address = new URL(`v1/${route}`, location.href).href;
  const key = keyed ? ' -H "Authorization: Bearer $ADLM_KEY"' : "";
  const headers = keyed ? ', headers={"Authorization": f"Bearer {os.environ[\'ADLM_KEY\']}"}' : "";
  return {
    curl: `curl ${address} -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(asked))}`,
    python: [
      ...(keyed ? ["import os", ""] : []), "import httpx", "",
      `ask = ${python(asked)}`,
      `answer = httpx.post(${JSON.stringify(address)}, json=ask${headers}, timeout=120)`,
      `print(answer.raise_for_status().json()${answer})`,
    ].join("\n"),
  };
}
