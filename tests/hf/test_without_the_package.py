"""An exported folder is loaded by a process that does not have this package, and that trusts its code."""

import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

from adlm.cli import main  # noqa: E402
from adlm.hf import export, modeling_adlm, wrapped  # noqa: E402
from tests.hf.made import CAUSAL, LENGTH, NETWORKS, WORDS, rows_of, text_model_of  # noqa: E402

PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "adlm":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

masked = AutoModelForMaskedLM.from_pretrained("./adlm", trust_remote_code=True)
causal = AutoModelForCausalLM.from_pretrained("./a2r", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("./adlm", trust_remote_code=True)
given, found, seeds = torch.load("given.pt"), {}, (1, 1, 2)
with torch.no_grad():
    found["logits"] = masked(given["adlm"]).logits, causal(given["a2r"]).logits
found["masked"] = [masked.generate(given["adlm"][:, :3], generator=torch.Generator().manual_seed(s)) for s in seeds]
found["causal"] = [causal.generate(given["a2r"][:, :3], do_sample=False, use_cache=each) for each in (True, False)]
found["ids"] = tokenizer("the [MASK] cat").input_ids
try:
    AutoModelForMaskedLM.from_pretrained("./adlm", trust_remote_code=False)
except ValueError as error:
    found["untrusted"] = str(error)
torch.save(found, "found.pt")
"""


def test_a_process_without_the_package_loads_computes_and_writes(tmp_path, monkeypatch):
    given, expected = {}, []
    for name in ("adlm", "a2r"):
        text, given[name] = text_model_of(name), rows_of(name)
        export(text, tmp_path / name)
        expected.append(wrapped(text)(given[name]).logits.detach())
    torch.save(given, tmp_path / "given.pt")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    found = torch.load(tmp_path / "found.pt")
    for theirs, ours in zip(found["logits"], expected, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
    first, again, other = found["masked"]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (3, LENGTH)
    assert not bool((first == WORDS.mask_id).any())
    assert torch.equal(first[:, 1:3], given["adlm"][:, 1:3])
    assert torch.equal(*found["causal"])
    assert found["ids"] == [*WORDS.encode("the"), WORDS.mask_id, *WORDS.encode(" cat")]
    assert "trust_remote_code=True" in found["untrusted"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_for_others_gives_the_same_logits(name, tmp_path):
    text, tokens = text_model_of(name), rows_of(name)
    export(text, tmp_path)
    kind = modeling_adlm.AdlmForCausalLM if name in CAUSAL else modeling_adlm.AdlmForMaskedLM
    model = kind.from_pretrained(tmp_path)
    mask = torch.ones_like(tokens)
    mask[1, 5:] = 0
    seen = mask.bool()
    with torch.no_grad():
        ours, theirs = (each(tokens, attention_mask=mask).logits[seen] for each in (wrapped(text), model))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


def test_the_file_for_others_refuses_what_it_does_not_know(tmp_path):
    export(text_model_of("mdlm"), tmp_path)
    model = modeling_adlm.AdlmForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="nonsense"):
        model.generate(nonsense=1)
    with pytest.raises(ValueError, match="13 new tokens"):
        model.generate(max_new_tokens=13)
    with pytest.raises(ValueError, match="gaps"):
        model(rows_of("mdlm"), attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1, 1]] * 3))


def test_the_command_line_converts_a_model_folder(tmp_path, capsys):
    text_model_of("adlm").save(tmp_path / "model")
    out = tmp_path / "for-transformers"
    assert main(["convert", str(tmp_path / "model"), str(out), "--to", "transformers"]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "README.md",
        "modeling_adlm.py",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer_roles.json",
    }
    assert "trust_remote_code" not in (out / "config.json").read_text()
    assert main(["convert", str(tmp_path / "model"), str(out), "--to", "transformers"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "model"), str(out), "--to", "transformers", "--force"]) == 0
    assert main(["convert", str(tmp_path / "model"), str(out), "--to", "transformers", "--length", "8"]) == 2
    assert "--length" in capsys.readouterr().err
