"""The routes. Each checks what is asked, gives the work to the engine, and waits or streams."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import isfinite
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from adlm import __version__
from adlm.samplers.patterns import pattern_time
from adlm.scoring import Score
from adlm.serve.completion_routes import add_completions
from adlm.serve.constraint_requests import check_holes, wordings
from adlm.serve.decisions import DecideRequest, decide
from adlm.serve.engine import Engine, Job
from adlm.serve.generation import GenerationJob
from adlm.serve.guard import Guard, client_of
from adlm.serve.limits import RequestRefused, check_given
from adlm.serve.metrics import Metrics
from adlm.serve.model_entries import model_entry
from adlm.serve.requests import (
    DetokenizeRequest,
    GenerateRequest,
    InfillRequest,
    Name,
    ScoreRequest,
    TokenizeRequest,
)
from adlm.serve.responses import (
    ERRORS,
    Decided,
    Detokenized,
    Filled,
    Health,
    ModelEntry,
    ModelList,
    SamplerEntry,
    ScoreResponse,
    Tokenized,
)
from adlm.serve.samplers import sampler_of, samplers_of
from adlm.serve.static_files import Page, pages
from adlm.serve.streaming import Events, Stream, begun, checked, line, results
from adlm.serve.ticket import Ticket
from adlm.serve.validation import explained
from adlm.text_model import TextModel

T = TypeVar("T")
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}, "description": "events"}}


def make_app(
    engine: Engine, *, keys: Mapping[str, str] | None = None, studio: bool = False, fronted: bool = False
) -> FastAPI:
    """The server's application. It starts the engine, and closes it at the end.

    Args:
        keys: by the names of clients; every request must bring one. None if only this machine can reach the server.
        studio: with the page.
        fronted: requests come from the front of several workers.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close()

    app = FastAPI(title="adlm", version=__version__, lifespan=life, docs_url=None, redoc_url=None, responses=ERRORS)
    metrics = Metrics(engine)
    app.add_middleware(Guard, limits=engine.limits, metrics=metrics, keys=keys, fronted=fronted)
    _explain_errors(app)
    _add_status(app, engine, metrics)
    _add_work(app, engine)
    add_completions(app, engine)
    if studio:
        _add_pages(app, pages())
    _without_422(app)
    return app


def _explain_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestRefused)
    async def refused(_: Request, error: RequestRefused) -> Response:
        return JSONResponse(error.body(), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = explained(error.errors()[0])
        if request.method == "POST" and "json" not in request.headers.get("Content-Type", ""):
            return JSONResponse(
                RequestRefused(400, "send JSON, with the header Content-Type: application/json").body(), 400
            )
        return JSONResponse(first.body(), 400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return JSONResponse(
            RequestRefused(error.status_code, str(error.detail)).body(), error.status_code, error.headers
        )


def _add_status(app: FastAPI, engine: Engine, metrics: Metrics) -> None:
    created = int(time.time())

    def entry(name: str) -> ModelEntry:
        return model_entry(name, engine.models[name], created)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Health:
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> Health:
        if engine.draining:
            raise RequestRefused(503, "the server is shutting down", code="draining")
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def counted() -> str:
        return metrics.text()

    @app.get("/v1/models")
    async def models() -> ModelList:
        return {"object": "list", "data": [entry(name) for name in engine.models]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> ModelEntry:
        return entry(engine.named(name))

    @app.get("/v1/samplers")
    async def samplers(model: Name | None = None) -> list[SamplerEntry]:
        return samplers_of(engine.models[engine.named(model)], engine.limits)  # type: ignore[return-value]


def _add_work(app: FastAPI, engine: Engine) -> None:
    limits = engine.limits

    @app.post("/v1/generate", response_class=StreamingResponse, responses=_STREAM)
    async def generate(request: Request, ask: GenerateRequest) -> Response:
        """A text while it is written, as server-sent events: canvas, step, step, ..., done."""
        sampler = sampler_of(engine, ask, 1, ask.max_tokens)
        limits.check("predictions", ask.predictions)
        ways = {
            "canvas": ask.canvas is not None,
            "text": ask.text is not None,
            "prompt": bool(ask.prompt or ask.suffix),
        }
        if ask.max_tokens is not None and (ways["canvas"] or ways["text"]):
            raise RequestRefused(
                400, "max_tokens goes with a prompt; here the blanks set the length", param="max_tokens"
            )
        if ask.constraints is not None and not ways["text"]:
            raise RequestRefused(400, "constraints go with a text that has holes", param="constraints")
        if ask.text is not None and "[MASK" in ask.text:
            checked(check_holes, ask.text, limits)
        if sum(ways.values()) > 1:
            several = " and ".join(way for way, given in ways.items() if given)
            raise RequestRefused(400, f"{several} cannot be combined; give one of them", param=several.split()[0])
        stream = Stream()
        stream.follow(
            engine.submit(
                engine.named(ask.model), [GenerationJob(ask, sampler, limits, stream.tell)], client_of(request)
            )
        )

        async def lines() -> AsyncIterator[str]:
            started = False
            try:
                async for event in stream.events(request):
                    if not isinstance(event, Job):
                        yield line(event)
                        started = True
            except RequestRefused as error:
                if not started:
                    raise
                yield line({"type": "error", **error.body()})

        return Events(stream, await begun(lines(), stream), limits.seconds)

    @app.post("/tokenize")
    async def tokenize(ask: TokenizeRequest) -> Tokenized:
        """The token ids of a text, without begin and end tokens."""
        tokenizer = engine.models[engine.named(ask.model)].tokenizer
        ids = tokenizer.encode(ask.text).tolist()
        pieces, unknown = [tokenizer.token(i) for i in ids], tokenizer.unknown(ask.text)
        return {"tokens": ids, "pieces": pieces, "count": len(ids), "unknown": unknown}

    @app.post("/detokenize")
    async def detokenize(ask: DetokenizeRequest) -> Detokenized:
        """The text of token ids. Special tokens leave no trace."""
        tokenizer = engine.models[engine.named(ask.model)].tokenizer
        if ask.tokens and max(ask.tokens) >= tokenizer.vocab_size:
            found = f"tokens: ids of this model are below {tokenizer.vocab_size}"
            raise RequestRefused(400, found, param="tokens", code="invalid_value")
        return {"text": tokenizer.decode(ask.tokens)}

    @app.post("/v1/infill")
    async def infill(request: Request, ask: InfillRequest) -> Filled:
        """Texts with the holes filled."""
        sampler = sampler_of(engine, ask, ask.n, None)
        constraints = wordings(ask.constraints, limits)

        def work(model: TextModel, _: Ticket) -> list[str]:
            check_given(model, limits, ask.text)
            check_holes(ask.text, limits)
            model, chosen = model.read_for_holes(sampler)
            with pattern_time(limits.pattern_seconds):
                row = model.infill_row(ask.text, seed=ask.seed, constraints=constraints)
            canvas = model.rows.canvas([(row, k) for k in range(ask.n)])
            limits.check("tokens", int(canvas.open[0].sum()), param="text")
            filled = model.fill(canvas, sampler=chosen, seed=ask.seed).tokens.tolist()
            return [model.rows.text(row, tokens) for tokens in filled]

        (texts,) = await results(request, engine.submit(engine.named(ask.model), [work], client_of(request)))
        return {"texts": texts}

    @app.post("/v1/decide")
    async def decisions(request: Request, ask: DecideRequest) -> Decided:
        """Yes or no, a choice, a number or a score at each slot of a text, with the probability of each option."""
        limits.check("options", sum(slot.count for slot in ask.slots), param="slots")

        def work(model: TextModel, _: Ticket) -> list[dict[str, Any]]:
            check_given(model, limits, ask.text)
            return decide(model, ask)

        name = engine.named(ask.model)
        (found,) = await results(request, engine.submit(name, [work], client_of(request)))
        return {"model": name, "decisions": found}

    @app.post("/v1/score")
    async def score(request: Request, ask: ScoreRequest) -> ScoreResponse:
        """-log p of a text in nats, exact or as a bound with its standard error, and each token's part in it."""

        def work(model: TextModel, _: Ticket) -> Score:
            return model.score(ask.text, seed=ask.seed)

        (found,) = await results(request, engine.submit(engine.named(ask.model), [work], client_of(request)))
        nats = found.nats
        surprise = [_number(value) for value in found.surprise]
        return {"nats": _number(nats.mean), "error": _number(nats.error), "tokens": list(found.tokens),
                "surprise": surprise}  # fmt: skip


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if isfinite(value) else None


def _add_pages(app: FastAPI, found: Mapping[str, Page]) -> None:
    @app.get("/", include_in_schema=False)
    async def studio() -> Response:
        return _page("studio.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _page(name)

    def _page(name: str) -> Response:
        if name not in found:
            raise HTTPException(404, "Not Found")
        return Response(found[name].content, media_type=found[name].kind)


def _without_422(app: FastAPI) -> None:
    """The description says what is answered: what does not fit its schema gets 400 here."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # as FastAPI's own documentation does
