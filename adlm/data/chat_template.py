"""Chats as text, by the template that comes with a model.

A template is a program in the language of jinja2. Its sandbox keeps it from files and from other objects, and nothing
keeps it from taking all time and memory. So it runs in a process of its own, which has little of both.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adlm.errors import ConfigError, DataError

CHAT_TEMPLATE = "chat_template.jinja"
MOST_CHARACTERS = 1 << 18
# On the clock: long where render_template.py limits the CPU time, so that a busy machine refuses no harmless template.
_SECONDS = 30.0 if sys.platform == "win32" else 100.0
_ENVIRONMENT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")


def read_chat_template(folder: Path) -> str | None:
    """The template in a folder: a file of its own, or a field of `tokenizer_config.json`; None if there is none."""
    own, settings = folder / CHAT_TEMPLATE, folder / "tokenizer_config.json"
    found: Any = None
    if own.is_file():
        with own.open(encoding="utf-8") as file:
            found = file.read(MOST_CHARACTERS + 1)
    elif settings.is_file():
        data = json.loads(settings.read_text(encoding="utf-8"))
        found = data.get("chat_template") if isinstance(data, dict) else None
        if isinstance(found, list):  # several, by name
            found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}.get("default")
    if not isinstance(found, str) or not found:
        return None
    if len(found) > MOST_CHARACTERS:
        raise DataError(
            f"the chat template in {folder} has more than {MOST_CHARACTERS} characters",
            fix="do not use this file: it is not a real one",
            subject="chat_template",
        )
    return found


def rendered_chat(template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """A chat as text, up to where the next message of the model begins.

    Args:
        variables: further names that templates use, such as bos_token.
    """
    given = {"messages": list(messages), "add_generation_prompt": True, **variables}
    program = [sys.executable, "-I", str(Path(__file__).with_name("render_template.py"))]
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    sent = json.dumps({"template": template, "variables": given})
    try:
        done = subprocess.run(
            program, input=sent, capture_output=True, text=True, encoding="utf-8", timeout=_SECONDS, env=environment
        )
        answer = json.loads(done.stdout) if done.returncode == 0 else {"error": "it takes too much time or memory"}
    except subprocess.TimeoutExpired:
        answer = {"error": "it takes too much time"}
    if "error" in answer:
        raise ConfigError("the model's chat template refuses these messages", answer["error"], subject="chat_template")
    text: str = answer["text"]
    return text
