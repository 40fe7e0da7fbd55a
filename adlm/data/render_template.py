"""Render a chat template: JSON on stdin to JSON on stdout. A program of its own, see `chat_template.py`.

The environment is that of transformers: the same sandbox, options, functions and the `generation` tag.
"""

import json
import sys
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MEMORY, _CPU_SECONDS = 256 << 20, 2
_MOST_CHARACTERS = 1 << 20


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote, which matters in training alone."""

    tags = {"generation"}  # noqa: RUF012 # as jinja2 has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows: there is the time limit of the parent
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))


def _raise(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def rendered(template: str, variables: dict[str, Any]) -> str:
    """The text of a template."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    parts, length = [], 0
    for part in environment.from_string(template).generate(**variables):
        length += len(part)
        if length > _MOST_CHARACTERS:
            raise TemplateError(f"it writes more than {_MOST_CHARACTERS} characters")
        parts.append(part)
    return "".join(parts)


if __name__ == "__main__":
    _limit()
    asked = json.load(sys.stdin)
    try:
        answer = {"text": rendered(asked["template"], asked["variables"])}
    except MemoryError:
        answer = {"error": "it needs too much memory"}
    except Exception as error:  # a template can raise anything
        answer = {"error": f"{str(error)[:200] or type(error).__name__}"}
    json.dump(answer, sys.stdout)
