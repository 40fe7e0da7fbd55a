// Runs as one HTML file that opens anywhere: the player and its looks, and the runs as data. Made as a document and
// written out by the browser, so that nothing a model wrote can be anything but text; its policy lets the player's own
// scripts run, by a number used once, and nothing be fetched.

import { playable } from "./recording.js";

const STYLES = ["style.css", "player.css"], SCRIPTS = ["canvas.js", "player.js", "page.js"];
const LAYOUT = ".page { display: block; max-width: 58rem; }"; // a report has its contents beside it
const POLICY = (nonce) => `default-src 'none'; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'; base-uri 'none'; form-action 'none'`;

async function file(name) {
  const response = await fetch(`static/${name}`);
  if (!response.ok) throw new Error(`${name} could not be read`);
  return response.text();
}

const joined = async (names) => (await Promise.all(names.map(file))).join("\n");
const nonce = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// JSON in a script block: no character of it can end the block.
const blockOf = (value) => JSON.stringify(value).replace(/[<>&]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

// runs: [{name, recording}]
export async function pageOf(runs, theme) {
  const [style, script] = await Promise.all([joined(STYLES), joined(SCRIPTS)]);
  const page = document.implementation.createHTMLDocument("A text as it appeared"), once = nonce();
  const add = (parent, kind, attributes, text) => {
    const element = page.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  page.documentElement.lang = "en";
  const { head, body } = page;
  head.prepend(add(head, "meta", { charset: "utf-8" }), add(head, "meta", { "http-equiv": "Content-Security-Policy", content: POLICY(once) }));
  add(head, "meta", { name: "viewport", content: "width=device-width, initial-scale=1" });
  add(head, "meta", { name: "color-scheme", content: "light dark" });
  const column = add(body, "div", { class: "page" }), header = add(add(column, "div", { class: "column" }), "header", {});
  header.append(page.importNode(theme, true));
  add(header, "h1", {}, page.title);
  add(header, "p", { class: "lead" }, "Play it, step through it, or look at a token to see what else was expected there.");
  runs.forEach(({ name, recording }, i) => {
    const section = add(header.parentElement, "section", { class: "player-section" });
    add(section, "h2", {}, name);
    add(section, "div", { "data-player": `run-${i}`, role: "group", "aria-label": name });
    add(section, "script", { type: "application/json", id: `run-${i}` }, blockOf(playable(recording)));
  });
  add(header.parentElement, "footer", {}, "Made in the adlm studio. One file: nothing in it is fetched from elsewhere.");
  add(body, "script", { nonce: once }, script);
  // This page's own policy, which the document shares until it is a file, would complain about styles.
  const styled = `<style nonce="${once}">${style}\n${LAYOUT}</style></head>`;
  return `<!doctype html>\n${page.documentElement.outerHTML.replace("</head>", () => styled)}\n`;
}

export function download(text, name, type = "text/html") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // the browser is still reading it
}
