"""What is wrong with a request, in words of the API rather than of the library that checked it."""

from collections.abc import Mapping
from typing import Any

from adlm.serve.limits import RequestRefused

_KINDS = {
    "missing": "is required",
    "string_type": "must be a text",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "finite_number": "must be a finite number",
    "extra_forbidden": "is not a field of this route",
    "string_unicode": "must be valid Unicode",
    "int_from_float": "must be an integer",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be greater than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "too_long": ("max_length", "must have at most {} items"),
    "too_short": ("min_length", "must have at least {} items"),
    "literal_error": ("expected", "must be {}"),
}


def explained(error: Mapping[str, Any]) -> RequestRefused:
    """The refusal of a request with this error, one of pydantic's."""
    kind, context = error["type"], error.get("ctx") or {}
    # Names of fields and positions in lists; others are parts of a union that were tried.
    path = [str(part) for part in error["loc"][1:] if isinstance(part, int) or part.isidentifier()]
    param = ".".join(path)[:200] or None
    if kind == "json_invalid":
        return RequestRefused(400, "the body is not valid JSON", code="invalid_json")
    if kind in _BOUNDS and _BOUNDS[kind][0] in context:
        name, text = _BOUNDS[kind]
        short = kind in ("string_too_short", "too_short") and context[name] == 1
        said = "must not be empty" if short else text.format(context[name])
    elif kind in _KINDS:
        said = _KINDS[kind]
    elif kind == "value_error":
        said = str(context["error"])  # the message of our own check
    else:
        said = str(error["msg"]) if kind in ("too_long", "texts") else "has a value that is not valid"
    code = "unsupported_parameter" if kind == "extra_forbidden" else "invalid_value"
    return RequestRefused(400, f"{param or 'the request body'}: {said}", param=param, code=code)
