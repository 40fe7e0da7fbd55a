"""The routes of OpenAI's clients: completions and chats, whole or streamed."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, Request

from adlm.samplers.sampler import Sampler
from adlm.serve.chat import ChatRequest, ChatWire, check_template
from adlm.serve.completions import Completion, Prompt, TextWire, usage
from adlm.serve.engine import Engine, Job
from adlm.serve.guard import client_of
from adlm.serve.limits import RequestRefused
from adlm.serve.requests import CompletionRequest
from adlm.serve.responses import ChatCompleted, Completed
from adlm.serve.samplers import sampler_of
from adlm.serve.streaming import Events, Stream, begun, line, results

_WHOLE_OR_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "texts, or events if a stream was requested"}
}
Wire = TextWire | ChatWire


def add_completions(app: FastAPI, engine: Engine) -> None:
    """Add `/v1/completions` and `/v1/chat/completions`."""

    @app.post("/v1/completions", response_model=Completed, responses=_WHOLE_OR_STREAM)
    async def completions(request: Request, ask: CompletionRequest) -> Any:
        """As OpenAI's clients ask; a stream of server-sent events with `stream`."""
        _check(engine, ask)
        head = {**_head(engine, ask, "cmpl"), "object": "text_completion"}
        return await _answered(request, engine, ask, ask.prompts, TextWire(head, ask.prompts if ask.echo else None))

    @app.post("/v1/chat/completions", response_model=ChatCompleted, responses=_WHOLE_OR_STREAM)
    async def chat(request: Request, ask: ChatRequest) -> Any:
        """As OpenAI's clients ask, if the model has a chat template; a stream of server-sent events with `stream`."""
        wishes = ask.completion()
        _check(engine, wishes)
        check_template(engine.models[engine.named(ask.model)].tokenizer)
        return await _answered(request, engine, wishes, [ask.messages], ChatWire(_head(engine, wishes, "chatcmpl")))


def _check(engine: Engine, ask: CompletionRequest) -> None:
    if (problem := ask.unsupported()) is not None:
        raise RequestRefused(400, problem[1], param=problem[0], code="unsupported_parameter")
    if ask.constraint is not None:
        engine.limits.check("options", len(ask.constraint.choice or ()), param="constraint")


def _head(engine: Engine, ask: CompletionRequest, kind: str) -> dict[str, Any]:
    return {"id": f"{kind}-{secrets.token_hex(12)}", "created": int(time.time()), "model": engine.named(ask.model)}


async def _answered(
    request: Request, engine: Engine, ask: CompletionRequest, prompts: Sequence[Prompt], wire: Wire
) -> Any:
    sampler = sampler_of(engine, ask, (ask.n or 1) * len(prompts), ask.max_tokens)
    if ask.stream:
        stream = Stream()
        lines = _streamed(request, engine, ask, prompts, sampler, wire, stream)
        return Events(stream, await begun(lines, stream), engine.limits.seconds)
    parts = [Completion(ask, prompt, sampler, _seed(ask), engine.limits) for prompt in prompts]
    found = await results(request, engine.submit(wire.head["model"], parts, client_of(request)))
    return {**wire.answer(found), "usage": usage(list(zip(parts, found, strict=True)))}


def _seed(ask: CompletionRequest) -> int:
    """Of each prompt its own where none was given: the same prompt twice is asked for two texts."""
    return secrets.randbits(63) if ask.seed is None else ask.seed


async def _streamed(
    request: Request,
    engine: Engine,
    ask: CompletionRequest,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    wire: Wire,
    stream: Stream,
) -> AsyncIterator[str]:
    n = ask.n or 1

    def part(i: int, prompt: Prompt) -> Completion:
        def tell(k: int, text: str, logprobs: dict[str, Any] | None) -> None:
            if text or logprobs:
                stream.tell(wire.piece(i * n + k, text, logprobs))

        return Completion(ask, prompt, sampler, _seed(ask), engine.limits, tell)

    parts = [part(i, prompt) for i, prompt in enumerate(prompts)]
    stream.follow(engine.submit(wire.head["model"], parts, client_of(request)))
    started = False
    try:
        async for event in stream.events(request):
            if not started:  # after the first event, so that a refusal is an answer of its own
                for index in range(n * len(parts)):
                    if (opening := wire.opening(index // n, index)) is not None:
                        yield line(opening)
                started = True
            if isinstance(event, Job):
                i = next(number for number, job in enumerate(stream.jobs) if job is event)
                for k, choice in enumerate(event.future.result()):
                    yield line(wire.piece(i * n + k, "", finish=choice.finish))
            else:
                yield line(event)
    except RequestRefused as error:
        if not started:
            raise
        yield line(error.body())
        return
    if ask.stream_options is not None and ask.stream_options.include_usage:
        done = [(each, job.future.result()) for each, job in zip(parts, stream.jobs, strict=True)]
        yield line({**wire.head, "choices": [], "usage": usage(done)})
    yield line("[DONE]")
