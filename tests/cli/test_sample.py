import io
import json
import re

import pytest
import torch
from rich.console import Console

from adlm.cli import main, sample
from adlm.cli.sample import Meter
from adlm.config import from_json
from adlm.data.packing import Padded
from adlm.data.tokenizer import train_words
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers import Ancestral, Canvas, Sampler
from adlm.samplers.named import named_samplers, sampler_for
from adlm.text_model import TextModel

TOKENIZER = train_words(["the cat sat on the mat. the dog sat on the log."])
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)


def network(stages: int = 1, *, causal: bool = False):
    torch.manual_seed(0)
    stack = StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full")
    config = OneStageConfig(stack) if stages == 1 else TwoStageConfig(stack, denoiser_layers=1)
    built = config.build(VOCABULARY).eval()
    torch.nn.init.normal_(built.head.weight)
    return config, built


@pytest.fixture(scope="module")
def model() -> TextModel:
    config, built = network()
    return TextModel(built, ModelConfig(config, VOCABULARY, Padded(12, predict_padding=True)), TOKENIZER)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model")
    model.save(path)
    return str(path)


def test_piped_texts_are_plain_with_lines_between_and_figures_aside(folder, model, capsys):
    words = ["--prompt", "the cat", "--n", "3", "--seed", "2", "--steps", "4", "--live"]
    assert main(["sample", folder, *words]) == 0
    shown = capsys.readouterr()
    texts = model.generate("the cat", n=3, seed=2, steps=4)
    assert shown.out == ("\n" + "-" * 40 + "\n").join(texts) + "\n"
    assert re.fullmatch(
        r"3 texts, 27 tokens in [\d.]+ s: [\d,]+ tokens/s, \d+ row passes through the network\n", shown.err
    )


def test_options_come_by_flag_and_by_name(folder, model, tmp_path, capsys):
    flags = ["--temperature", "0.5", "--top-p", "0.9", "--top-k", "4", "--steps", "3", "--max-new-tokens", "5"]
    settings = ["temperature=0.5", "top_p=0.9", "top_k=4", "num_steps=3", "gen_length=5", "num_samples=2"]
    assert main(["sample", folder, *flags, "--n", "2"]) == 0
    one = capsys.readouterr().out
    assert main(["sample", folder, *(word for each in settings for word in ("--set", each))]) == 0
    assert capsys.readouterr().out == one
    texts = model.generate(n=2, temperature=0.5, top_p=0.9, top_k=4, steps=3, max_new_tokens=5)
    assert one == f"\n{'-' * 40}\n".join(texts) + "\n"


def test_a_file_holds_what_is_needed_to_write_a_text_again(folder, model, tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text('{"prompt": "the cat"}\n\n{"prompt": "the dog", "other": 1}\n')
    words = ["--prompts", str(tmp_path / "in.jsonl"), "--n", "2", "--seed", "5", "--out", str(tmp_path / "out.jsonl")]
    assert main(["sample", folder, *words, "--sampler", "remdm-cap", "--set", "eta=0.1", "--steps", "4"]) == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(r["prompt"], r["index"], r["seed"]) for r in records] == [
        (prompt, i, 5) for prompt in ("the cat", "the dog") for i in range(2)
    ]
    sampler = from_json(Sampler, records[0]["sampler"])
    assert sampler == sampler_for(model.network, "remdm-cap", {"eta": 0.1, "steps": 4})
    assert [r["text"] for r in records] == model.generate(["the cat", "the dog"], n=2, seed=5, sampler=sampler)


def test_prompts_come_a_line_each(folder, model, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("the cat\nthe dog\n")
    assert main(["sample", folder, "--prompts", str(tmp_path / "in.txt"), "--steps", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[::2] == model.generate(["the cat", "the dog"], steps=2)


def test_the_prompt_may_follow_the_model(folder, model, capsys):
    assert main(["sample", folder, "the cat", "--steps", "2"]) == 0
    assert capsys.readouterr().out == model.generate("the cat", steps=2)[0] + "\n"
    for option in ("--prompt", "--prompts"):
        assert main(["sample", folder, "the cat", option, "the dog"]) == 2


def test_a_terminal_gets_frames(folder, model, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr(sample, "console", lambda: screen)
    assert main(["sample", folder, "--prompt", "the cat", "--n", "2", "--steps", "2"]) == 0
    shown = screen.file.getvalue()
    assert "╭─ 1 ─" in shown
    assert "╭─ 2 ─" in shown
    assert all(text in shown for text in model.generate("the cat", n=2, steps=2))


def test_holes_are_filled(folder, model, tmp_path, capsys):
    text = "the cat[MASK] on the[MASK]."
    out = tmp_path / "out.jsonl"
    assert main(["infill", folder, text, "--n", "2", "--steps", "3", "--live", "--out", str(out)]) == 0
    filled = model.infill(text, n=2, sampler=Ancestral(steps=3))
    shown = capsys.readouterr()
    assert shown.out == f"\n{'-' * 40}\n".join(filled) + "\n"
    assert "2 texts, 4 tokens" in shown.err
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == filled


def test_a_file_stays_as_it_was_until_all_texts_are_there(folder, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    with monkeypatch.context() as patched:
        patched.setattr(TextModel, "generate_each", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["sample", folder, "--out", str(out)]) == 130
    assert out.read_text() == "before"
    assert main(["sample", folder, "--steps", "2", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["index"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_write_too(folder, precision, capsys):
    assert main(["sample", folder, "--precision", precision, "--prompt", "the cat", "--steps", "4"]) == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_holes_hold_what_they_may(folder, capsys):
    text = "the [MASK] on the [MASK]."
    holes = ["--hole", "choice:cat|mat", "--hole", "pattern:[m-p].."]
    assert main(["infill", folder, text, "--n", "8", "--seed", "3", *holes]) == 0
    texts = capsys.readouterr().out.split("\n" + "-" * 40 + "\n")
    assert len(texts) == 8
    for each in texts:
        assert re.fullmatch(r"the (cat|mat) on the [m-p]..\.", each.strip()), each
    assert main(["infill", folder, text, "--hole", "vowels"]) == 2
    assert "--hole" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sampler", "ancestal"], "ancestral"),
        (["--set", "temprature=1"], "temperature"),
        (["--set", "temperature"], "--set"),
        (["--set", "steps=many"], "steps"),
        (["--set", "steps=3", "--steps", "3"], "steps"),
        (["--set", "num_steps=3", "--steps", "3"], "num_steps"),
        (["--set", "n=3", "--n", "2"], "n was"),
        (["--n", "0"], "n must"),
        (["--max-new-tokens", "99"], "block_size"),
        (["--prompt", "a", "--prompts", "b"], "--prompts"),
        (["--prompts", "no/such/file"], "no/such/file"),
        (["--out", "no/such/folder/out.jsonl"], "no/such/folder"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_mistakes_are_answered(folder, words, message, capsys):
    assert main(["sample", folder, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "in.jsonl"),
        ('{"text": "a"}', "line 1"),
        ('{"prompt": "a"}\n{"prompt": 1}', "line 2"),
        ("[", "line 1"),
    ],
)
def test_prompts_that_cannot_be_read_are_named(folder, text, message, tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text(text)
    assert main(["sample", folder, "--prompts", str(tmp_path / "in.jsonl")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", named_samplers())
def test_the_passes_reported_are_those_the_sampler_counts(name):
    causal = name == "left-to-right"
    _, model = network(1 if causal else 2, causal=causal)
    if name == "draft-and-verify":
        stack = StackConfig(width=16, heads=2, layers=1, attention="block")
        model = OneStageConfig(stack, block_size=4, shift=True).build(VOCABULARY).eval()
    meter = Meter(end=VOCABULARY.size)
    canvas = Canvas.continuing([[1, 2]] * 3, 10, TOKENIZER.mask_id)
    few = {"steps": 12} if "steps" in named_samplers()[name].options else {}
    result = sampler_for(model, name, few).sample(model, canvas, noise=Noise(0), on_step=meter)
    assert meter.passes == result.network_calls
    assert meter.tokens == 24


def test_what_follows_the_end_of_a_text_is_not_counted_as_written(capsys):
    assert main(["sample", "box", "--sampler", "left-to-right", "--seed", "1", "--max-new-tokens", "250"]) == 0
    tokens, passes = map(int, re.search(r" (\d+) tokens in .*, (\d+) row passes", capsys.readouterr().err).groups())
    assert tokens == passes


def test_texts_are_written_as_they_come(folder, monkeypatch, capsys):
    """However many are asked for: memory holds some of them, and what was written is on the screen."""
    from adlm.cli.sample import Output

    add, count = Output.add, 600

    def until(self, text, **facts):
        add(self, text, **facts)
        if self.count == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(Output, "add", until)
    assert main(["sample", folder, "--n", "100000000", "--max-new-tokens", "1", "--steps", "1"]) == 130
    assert capsys.readouterr().out.count("-" * 40) == count - 1


def test_a_port_that_does_not_exist_is_refused(folder, capsys):
    assert main(["serve", folder, "--port", "99999"]) == 2
    assert "port must be from 0 to 65535, got 99999" in capsys.readouterr().err
