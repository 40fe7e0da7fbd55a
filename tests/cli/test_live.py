import dataclasses
import io
import os
import re
import struct
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

from adlm.anchors import ContentWords, RareInSequence
from adlm.cli import live
from adlm.cli.live import LiveView
from adlm.config import to_json
from adlm.data.packing import Padded
from adlm.data.tokenizer import train_bpe, train_words
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.pieces import anchor_rule, harmless
from adlm.samplers.blocks import BlockLayout, block_layout
from adlm.samplers.state import StepEvent
from adlm.text_model import TextModel

WORDS = train_words(["the cat sat on the mat.\n\x1b[31m 猫 犬 the dog sat on the log."])
BYTES = train_bpe(["the cat sat. 猫犬"] * 3, 280)


def built(tokenizer=WORDS, *, causal=False, stages=1, run=None) -> TextModel:
    torch.manual_seed(0)
    stack = StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full")
    network = OneStageConfig(stack) if stages == 1 else TwoStageConfig(stack, 1)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    model = network.build(vocabulary).eval()
    torch.nn.init.normal_(model.head.weight)
    config = ModelConfig(network, vocabulary, Padded(16, predict_padding=True), run)
    return TextModel(model, config, tokenizer)


def terminal(width=60, height=20, **options) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, **options)


def view_of(rows, fresh=(), remasked=(), step=0, steps=10) -> StepEvent:
    tokens = torch.tensor(rows)
    marks = [torch.zeros_like(tokens, dtype=torch.bool) for _ in range(2)]
    for mark, positions in zip(marks, (fresh, remasked), strict=True):
        for position in positions:
            mark[position] = True
    return StepEvent(step, steps, tokens, *marks)


def drawn(view: LiveView, step: StepEvent, **options) -> str:
    """A picture as the terminal gets it."""
    console = terminal(view.console.width, view.console.height, **options)
    console.print(view.picture(step))
    return console.file.getvalue()


def ids(text: str) -> list[int]:
    return WORDS.encode(text).tolist()


@pytest.fixture
def unhurried(monkeypatch):
    """Every step is shown."""
    monkeypatch.setattr(live, "_PAUSE", 0)
    monkeypatch.setattr(live, "_PICTURES", 1)


def test_blanks_fresh_anchors_given_and_taken_back_look_different(monkeypatch):
    view = LiveView(built(stages=2), terminal(), limit=None)
    mask = WORDS.mask_id
    monkeypatch.setattr(view, "rule", ContentWords.from_types(torch.arange(WORDS.vocab_size) == ids(" sat")[0]))
    view(view_of([[*ids("the cat"), mask, mask, mask, *ids(" the")]], fresh=[(0, 5)]))
    step = view_of([[*ids("the cat sat on"), mask, *ids(" dog")]], fresh=[(0, 2), (0, 3)], remasked=[(0, 4)], step=1)
    view.fresh, view.taken = step.fresh, step.remasked
    shown = drawn(view, step, color_system="standard")
    assert re.search(r"the cat \x1b\[1;7;36msat\x1b\[0m \x1b\[7mon\x1b\[0m\x1b\[31m ░░░\x1b\[0m dog", shown)
    plain = drawn(view, step, color_system=None)
    assert "step 2/10" in plain
    assert "75% revealed" in plain
    assert all(word in plain for word in ("tokens/s", "blank", "fresh", "anchor", "taken back"))


def test_anchors_are_marked_only_for_models_with_an_anchor_stage():
    view, row = LiveView(built(), terminal()), [ids("the cat sat on the mat.")]
    view(view_of([[WORDS.mask_id] * len(row[0])]))
    shown = drawn(view, view_of(row), color_system="standard")
    assert "anchor" not in shown
    assert "\x1b[1;36m" not in shown


def test_the_block_being_written_and_finished_blocks_are_marked():
    mask = WORDS.mask_id
    view = LiveView(built(), terminal(100), layout=BlockLayout(2, from_start=True))
    view(view_of([[*ids("the"), *[mask] * 6]]))
    step = view_of([[*ids("the cat sat"), mask, mask, mask, mask]], step=1)
    shown = drawn(view, step, color_system="standard")
    assert "block 2 of 4" in shown
    assert re.search(r"the cat\x1b\[32m│\x1b\[0m \x1b\[4msat\x1b\[0m\x1b\[33m ░░░\x1b\[0m\x1b\[2m ░░░", shown)
    last = drawn(view, view_of([ids("the cat sat on the mat.")], step=6), color_system=None)
    assert "the cat│ sat on│ the mat│." in last
    assert "block 4 of 4" in last


def test_blocks_of_a_model_that_sees_whole_rows_are_counted_from_the_first_blank():
    model, mask = built(), WORDS.mask_id
    layout = block_layout(model.sampler("ancestral", block_size=2), model.network)
    assert layout == BlockLayout(2, from_start=False)
    assert block_layout(model.sampler("ancestral"), model.network) is None
    view = LiveView(model, terminal(), layout=layout)
    view(view_of([[*ids("the"), *[mask] * 4]]))
    assert "the cat sat│ ░░░" in drawn(view, view_of([[*ids("the cat sat"), mask, mask]], step=2), color_system=None)


def test_characters_of_several_tokens_are_shown_whole():
    row = BYTES.encode("the 犬 café — 🦊").tolist()
    view = LiveView(built(BYTES), terminal())
    view(view_of([row]))
    assert "the 犬 café — 🦊" in drawn(view, view_of([row]), color_system=None)


def test_what_happened_between_two_pictures_is_shown_with_the_second(monkeypatch):
    pictures = []
    view = LiveView(built(), terminal())
    monkeypatch.setattr(view, "picture", lambda step: pictures.append((view.fresh.clone(), view.taken.clone())) or "")
    mask = WORDS.mask_id
    view(view_of([[mask] * 4]))
    view.due = time.perf_counter() + 100
    view(view_of([[0, mask, mask, 3]], fresh=[(0, 0), (0, 3)], step=1))
    view(view_of([[mask, 1, mask, 3]], fresh=[(0, 1)], remasked=[(0, 0)], step=2))
    assert len(pictures) == 1
    view.due = 0
    view(view_of([[mask, 1, 2, 3]], fresh=[(0, 2)], step=3))
    fresh, taken = pictures[1]
    assert fresh[0, 1:].all()
    assert taken.tolist() == [[True, False, False, False]]


def test_pictures_cost_a_tenth_of_the_time_at_most(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(live.time, "perf_counter", lambda: clock[0])
    view, count = LiveView(built(), terminal()), []

    def slow(step):
        clock[0] += 0.5
        count.append(step)
        return ""

    monkeypatch.setattr(view, "picture", slow)
    for step in range(1000):
        clock[0] += 0.1
        view(view_of([[0, 1]], step=step))
    assert 0.5 * len(count) <= 0.11 * clock[0]
    assert len(count) > 1


@pytest.mark.parametrize("tokenizer", [WORDS, BYTES])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 5), (30, 6), (200, 60)])
@pytest.mark.parametrize("causal", [False, True])
def test_it_fits_into_any_terminal(unhurried, tokenizer, width, height, causal):
    console, seen = terminal(width, height), []
    model = built(tokenizer, causal=causal)
    with LiveView(model, console) as view:

        def watch(step):
            view(step)
            lines = list(console.render_lines(view.picture(step), pad=False))
            seen.append(max(sum(part.cell_length for part in line) for line in lines) <= max(2, width))

        options = {} if causal else {"sampler": "remdm-cap", "eta": 0.3, "steps": 4}
        texts = model.generate(["", " 猫 犬"], n=2, on_step=watch, **options)
    assert all(seen)
    assert len(texts) == 4
    assert "\x1b[?25h" in console.file.getvalue()  # the cursor is back


def test_as_many_samples_as_fit_are_shown_and_it_says_so():
    console = terminal(40, 12)
    view, rows = LiveView(built(), console), [[*ids("the cat sat on the mat.")]] * 30
    view(view_of(rows))
    shown = drawn(view, view_of(rows), color_system=None)
    found = int(re.search(r"(\d+) of 30 shown", shown)[1])
    assert 2 <= found == shown.count("the cat sat")
    assert shown.count("\n") <= 12


def test_nothing_in_a_token_moves_the_cursor():
    view = LiveView(built(), terminal())
    rows = [ids("mat.\n\x1b[31m 猫")]
    view(view_of(rows))
    shown = drawn(view, view_of(rows), color_system=None)
    assert "\x1b[31m" not in shown
    assert "⏎" in shown
    assert "猫" in shown


def test_what_a_terminal_would_obey_is_shown_as_a_dot():
    assert harmless("a\x1b[2J\r\x07b 猫\n\tc") == "a·[2J··b 猫\n\tc"


def test_what_is_never_written_is_not_shown():
    view, mask = LiveView(built(), terminal(), limit=2), WORDS.mask_id
    rows = [[*ids("the cat"), *[mask] * 6], [*ids("the"), *[mask] * 7]]
    view(view_of(rows))
    assert drawn(view, view_of(rows), color_system=None).count("░░░") == 2 + 2 + 2  # and the legend


def test_anchors_are_marked_by_the_rule_of_training():
    config = built().config
    assert anchor_rule(config) == RareInSequence()
    run = {"objective": to_json(Anelbo(rule=RareInSequence(2)))}
    assert anchor_rule(dataclasses.replace(config, run=run)) == RareInSequence(2)
    for odd in ({"objective": {"rule": "NoSuchRule"}}, {"objective": "Nelbo"}, {"objective": {"kind": "Nelbo"}}):
        assert anchor_rule(dataclasses.replace(config, run=odd)) == RareInSequence()
    given = {"objective": {"kind": "Anelbo", "rule": {"kind": "Given"}}}  # marks that come with data
    marks = [LiveView(built(stages=2, run=each), terminal())._anchors(torch.tensor([[0, 1]])) for each in (given, None)]
    assert torch.equal(*marks)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_real_terminal_shows_the_canvas_then_the_texts(tmp_path):
    import fcntl
    import pty
    import termios

    built().save(tmp_path / "model")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = ["sample", str(tmp_path / "model"), "--prompt", "the cat", "--live", "--n", "2", "--steps", "8"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "adlm", *words], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        error = process.stderr.read().decode()
    os.close(ours)
    assert process.returncode == 0, error
    text = shown.decode()
    assert "░░░" in text
    assert "taken back" in text
    assert text.index("step 1/8") < text.index("╭─ 1")
    assert "2 texts, 26 tokens" in error
