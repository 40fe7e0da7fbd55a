"""A smaller vocabulary: the same numbers for what is kept, and a tokenizer that gives any text back that it can."""

import numpy as np
import pytest
import torch

import adlm
from adlm.convert import prune_vocabulary, token_counts
from adlm.data.packing import Wrapped
from adlm.data.prune_tokenizer import kept_tokens
from adlm.data.tokenizer import train_bpe, train_words, with_roles
from adlm.errors import ConfigError, OutOfRange
from adlm.models.hand_over import Hidden, Logits, Probabilities
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel
from tests.convert.test_llama2c import PIECES, write_tokenizer
from tests.errors import raises

TEXTS = ["a small text for a small tokenizer", "others have other words, and numbers: 1234", "the cat sat on the mat"]
STACK = StackConfig(width=16, heads=2, layers=2)
NETWORKS = {
    "tied": OneStageConfig(STACK, tied=True),
    "untied": OneStageConfig(STACK),
    "logits": TwoStageConfig(STACK, 1, Logits()),
    "probabilities": TwoStageConfig(STACK, 1, Probabilities()),
    "hidden": TwoStageConfig(STACK, 1, Hidden(), tied=True),
}


def model_of(network, tokenizer):
    torch.manual_seed(0)
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(16))
    model = config.build().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return TextModel(model, config, tokenizer)


BPE = train_bpe(TEXTS * 4, 340)


@pytest.mark.parametrize("name", ["tied", "untied", "hidden"])
def test_logits_of_kept_tokens_are_the_same(name):
    model = model_of(NETWORKS[name], BPE)
    pruned = prune_vocabulary(model, TEXTS[:1])
    kept = kept_tokens(BPE, BPE.encode(TEXTS[0]))
    assert pruned.config.vocabulary.size == len(kept) < BPE.vocab_size
    ids, before = pruned.tokenizer.encode(TEXTS[0]), BPE.encode(TEXTS[0])
    assert kept[ids].tolist() == before.tolist()
    with torch.no_grad():
        found = pruned.network(torch.tensor(ids)[None])
        expected = model.network(torch.tensor(before)[None])[..., kept]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["logits", "probabilities"])
def test_hand_overs_of_the_vocabulary_lose_what_is_dropped(name):
    """What they hand over is a sum over the vocabulary, of which a part is gone; the first stage is exact."""
    model = model_of(NETWORKS[name], BPE)
    pruned = prune_vocabulary(model, TEXTS[:1])
    kept = kept_tokens(BPE, BPE.encode(TEXTS[0]))
    ids, before = (torch.tensor(t.encode(TEXTS[0]))[None] for t in (pruned.tokenizer, BPE))
    with torch.no_grad():
        found = pruned.network.anchor_logits(pruned.network.features(ids).anchor)
        expected = model.network.anchor_logits(model.network.features(before).anchor)[..., kept]
    torch.testing.assert_close(found, expected)


def test_other_texts_come_back_in_shorter_pieces():
    pruned = prune_vocabulary(model_of(NETWORKS["tied"], BPE), TEXTS[:1]).tokenizer
    for text in (*TEXTS, "naïve 🎉\t", ""):
        assert pruned.decode(pruned.encode(text)) == text
    assert len(pruned.encode(TEXTS[1])) > len(BPE.encode(TEXTS[1]))


def test_counts_and_documents_say_the_same_and_rare_tokens_go():
    model = model_of(NETWORKS["tied"], BPE)
    counts = token_counts(BPE, TEXTS)
    assert counts.sum() == sum(len(BPE.encode(text)) for text in TEXTS)
    one, two = prune_vocabulary(model, TEXTS), prune_vocabulary(model, counts)
    assert one.tokenizer.fingerprint == two.tokenizer.fingerprint
    assert prune_vocabulary(model, counts, least=2).config.vocabulary.size < one.config.vocabulary.size


def test_a_pruned_model_is_saved_loaded_and_writes(tmp_path):
    pruned = prune_vocabulary(model_of(NETWORKS["untied"], BPE), TEXTS[:1])
    pruned.save(tmp_path)
    assert adlm.load(tmp_path).generate(seed=1) == pruned.generate(seed=1)


def test_the_start_of_rows_is_kept_and_bytes_stand_for_what_is_not(tmp_path):
    from adlm.convert.scored_pieces import read_scored_pieces

    write_tokenizer(tmp_path / "tokenizer.bin")
    tokenizer = read_scored_pieces(tmp_path / "tokenizer.bin", 259 + len(PIECES), asked="asked")
    network = OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal"), shift=True, start=1)
    model = model_of(network, tokenizer)
    pruned = prune_vocabulary(model, ["ab"])
    # Special tokens, bytes, the pieces of " ab" and the mask.
    names = [pruned.tokenizer.backend.id_to_token(i) for i in range(259, pruned.config.vocabulary.size)]
    assert set(names) == {"▁", "a", "b", "▁a", "▁ab", None}
    assert pruned.tokenizer.decode(pruned.tokenizer.encode("ab c abc")) == "ab c abc"
    assert pruned.network.start_id == 1
    torch.testing.assert_close(pruned.score("ab").nats.mean, _restricted(model, pruned, "ab"), rtol=1e-5, atol=1e-5)


def _restricted(model, pruned, text):
    """Nats under the old model, renormalised over the tokens that are left."""
    ids = [*model.tokenizer.encode(text).tolist(), model.tokenizer.roles.eos_id]
    kept = kept_tokens(model.tokenizer, model.tokenizer.encode(text))
    with torch.no_grad():
        logits = model.network(torch.tensor([ids]))[0][:, kept].log_softmax(-1)
    places = np.searchsorted(kept, ids)
    return -sum(float(logits[i, place]) for i, place in enumerate(places))


def test_words_that_were_dropped_are_refused_by_name():
    words = train_words(TEXTS)
    pruned = prune_vocabulary(model_of(NETWORKS["tied"], words), TEXTS[:1])
    assert pruned.tokenizer.decode(pruned.tokenizer.encode(TEXTS[0])) == TEXTS[0]
    with raises(ConfigError, subject="cat"):
        pruned.tokenizer.encode_known("a small cat")


def test_what_cannot_be_pruned_is_refused():
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    model = model_of(NETWORKS["tied"], BPE)
    with raises(ConfigError, subject="data"):
        prune_vocabulary(model, [])
    with raises(OutOfRange, subject="counts"):
        prune_vocabulary(model, np.ones(1000, np.int64))
    with raises(OutOfRange, subject="least"):
        prune_vocabulary(model, TEXTS, least=0)
    unigram = with_roles(Backend(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0)))
    with raises(ConfigError, subject="Unigram"):
        prune_vocabulary(model_of(NETWORKS["tied"], unigram), ["a"])
