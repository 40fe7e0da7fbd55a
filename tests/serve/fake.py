"""A server that speaks the wire format and has no model: it fills blanks with words of a list, the last blank first.

The page's tests need it for what a real server does rarely or never: refuse, break off, wait, write hostile text.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SAMPLERS = [
    {
        "name": "ancestral",
        "about": "Each blank is filled at a random time, as in training.",
        "options": {"steps": {"default": 64, "least": 1, "most": 512}, "block_size": {"least": 0}},
    },
    {"name": "first-hitting", "about": "One token at a time, at the exact times of the process.", "options": {}},
]
KNOWN = {
    "parameters": 2_600_000,
    "length": 64,
    "stages": 2,
    "attention": "full",
    "block_sizes": [],
    "fills_holes": True,
}
SAMPLING = {"sampler": "ancestral", "steps": 32, "top_p": 0.8}
WORDS = (" fox", " owl", " sings", " softly", " to", " the", " moon", ".")
FILLING = 9999
_PARTS = re.compile(r"\[MASK:(\d+)\]|(\s*(?!\[MASK)\S[^\s\[]*)")

Json = dict[str, Any]
Token = tuple[int | None, str]


@dataclass
class Fake:
    """What the server does next, and what it was asked."""

    words: tuple[str, ...] = WORDS
    models: tuple[str, ...] = ("box",)
    known: Json = field(default_factory=dict)  # what /v1/models tells otherwise than `KNOWN`
    unknown: tuple[str, ...] = ()  # words without a token
    tail: int = 0  # tokens that fill up the row of a prompt or text
    ends_at: int | None = None  # a place, from which on nothing is written
    pause: float = 0.0  # seconds before each step
    hold_after: int | None = None  # steps, after which it waits for `go`
    go: threading.Event = field(default_factory=threading.Event)
    refusals: list[tuple[int, Json, dict[str, str]]] = field(default_factory=list)  # status, error, headers: once each
    cut_after: int | None = None  # steps, after which the connection breaks
    requests: list[Json] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)  # set when a reader goes away in mid-stream
    url: str = ""

    def __post_init__(self) -> None:
        self.count = len(self.words)  # what it writes; words of prompts come to be known behind them

    def tokens(self, request: Json) -> list[Token]:
        """The canvas that a request asks for. A word's number is its place in the list, or a checksum of it."""
        if request.get("canvas") is not None:
            return [token for position in request["canvas"] for token in self.position(position)]
        if request.get("text") is None:
            prompt = [(self.number(word), word) for _, word in _PARTS.findall(request.get("prompt", ""))]
            return [*prompt, *[(None, "")] * (request.get("max_tokens") or 5)]
        found: list[Token] = []
        for size, word in _PARTS.findall(request["text"]):
            found += [(None, "")] * int(size) if size else [(self.number(word), word)]
        return found

    def position(self, position: int | str | None) -> list[Token]:
        """Of a canvas: a number, a blank, or a text of several words."""
        if isinstance(position, str):
            return [(self.number(word), word) for _, word in _PARTS.findall(position)]
        return [(position, "" if position is None else self.word(position))]

    def number(self, word: str) -> int:
        self.words = self.words if word in self.words else (*self.words, word)
        return self.words.index(word)

    def word(self, number: int) -> str:
        return "·" if number == FILLING else self.words[number]

    def events(self, request: Json) -> Iterator[Json]:
        canvas = self.tokens(request)
        open_positions = [i for i, (number, _) in enumerate(canvas) if number is None]
        shown = [[number, text, "blank" if number is None else "given"] for number, text in canvas]
        if request.get("canvas") is None:
            shown += [[FILLING, "·", "given"]] * self.tail
        typed = [len(self.position(position)) for position in request.get("canvas") or () if isinstance(position, str)]
        size = request.get("block_size") or 0
        begun = {"steps": len(open_positions), "anchored": self.known.get("stages") != 1, "typed": typed}
        yield {"type": "canvas", "tokens": shown, "blocks": {"size": size, "first": 0} if size > 1 else None, **begun}
        count = self.count
        chosen = {position: (position + request["seed"]) % count for position in open_positions}
        predictions = [
            [i, [[self.words[k], 0.6], [self.words[(k + 1) % count], 0.3]], [[self.words[k], 0.9]]]
            for i, k in chosen.items()
        ]
        told = {"type": "step", "predictions": [], "probabilities": []}
        yield {**told, "step": 0, "seconds": 0.0, "changes": [], "predictions": predictions, "anchors": []}
        anchors: list[int] = []
        end = self.ends_at if self.ends_at is not None and self.ends_at < len(canvas) else len(canvas)
        order = sorted((i for i in open_positions if i < end), key=lambda i: (i // size if size > 1 else 0, -i))
        for step, position in enumerate(order, 1):
            anchors += [position] if position % 3 == 1 else []
            change = [position, chosen[position], self.words[chosen[position]]]
            sure = {"probabilities": [[position, 0.5]], "seconds": 0.01 * step, "anchors": list(anchors)}
            yield {**told, "step": step, "changes": [change], **sure}
        text = "".join(self.words[chosen[i]] if i in chosen else text for i, (_, text) in enumerate(canvas[:end]))
        cost = {"seconds": 0.25, "calls": len(open_positions), "tokens": len(order)}
        yield {"type": "done", "text": text, **cost, "length": end}


class _Handler(BaseHTTPRequestHandler):
    fake: Fake

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said on the terminal."""

    def do_GET(self) -> None:
        if self.path == "/":
            self.page("studio.html")
        elif self.path.startswith("/static/"):
            self.page(self.path.removeprefix("/static/"))
        elif self.path == "/v1/models":
            self.json(
                200,
                {
                    "object": "list",
                    "data": [
                        {"id": name, "object": "model", "sampling": SAMPLING, **KNOWN, **self.fake.known}
                        for name in self.fake.models
                    ],
                },
            )
        elif self.path.startswith("/v1/samplers?model="):
            self.json(200, SAMPLERS[1:] if self.path.endswith("=ar") else SAMPLERS)
        else:
            self.json(404, {"error": {"message": "there is nothing here"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.json(200, {"unknown": [word for word in self.fake.unknown if word in request["text"]]})
            return
        self.fake.requests.append(request)
        self.fake.keys.append(self.headers["Authorization"])
        if self.fake.refusals:
            status, error, headers = self.fake.refusals.pop(0)
            self.json(status, {"error": error}, headers)
            return
        self.begin(200, "text/event-stream", {})
        try:
            for event in self.fake.events(request):
                if self.fake.cut_after is not None and event.get("step", 0) > self.fake.cut_after:
                    return
                if self.fake.hold_after is not None and event.get("step", 0) > self.fake.hold_after:
                    self.fake.go.wait(60)
                time.sleep(self.fake.pause)
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        except OSError:
            self.fake.left.set()

    def begin(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        policy = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        for name, value in {**policy, **headers, "Content-Type": f"{kind}; charset=utf-8"}.items():
            self.send_header(name, value)
        self.end_headers()

    def json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self.begin(status, "application/json", headers or {})
        self.wfile.write(json.dumps(body).encode())

    def page(self, name: str) -> None:
        """The page's own files, and those it shares with reports."""
        for folder in (files("adlm") / "serve" / "static", files("adlm") / "report"):
            file = folder / name
            if "/" not in name and file.is_file():
                self.begin(200, KINDS[name.rpartition(".")[2]], {})
                self.wfile.write(file.read_bytes())
                return
        self.json(404, {"error": {"message": "there is no such file"}})


def serve(fake: Fake) -> ThreadingHTTPServer:
    """On a port of its own, in a thread; the caller shuts it down."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}/"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server
