from dataclasses import fields, replace
from itertools import islice

import pytest
from adlm.evaluate.perplexity import ESTIMATORS

from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import characters, load_tokenizer, train_bpe
from adlm.errors import ConfigError
from adlm.evaluate.documents import packed_rows
from adlm.evaluate.protocols import PROTOCOLS, counting, described, protocol
from adlm.recipes.named import recipe


def test_text8_fits_a_model_of_letters_in_rows_of_256_and_no_other():
    text8 = protocol("text8")
    text8.check(characters(), Wrapped(256, separated=False))
    with pytest.raises(ConfigError, match="rows of 128 tokens instead of 256") as error:
        text8.check(train_bpe(["a zone"] * 3, 260), Wrapped(128))
    assert "vocabulary of 260 instead of 30" in error.value.found
    assert "a tokenizer that is not characters" in error.value.found
    with pytest.raises(ConfigError, match="did you mean 'text8'"):
        protocol("text")


def test_letters_in_another_order_are_another_tokenizer():
    with pytest.raises(ConfigError, match="a tokenizer that is not characters"):
        protocol("text8").check(characters("abcdefghijklmnopqrstuvwxyz "), Wrapped(256))


def test_published_tokenizers_are_known_by_their_ids(shared):
    bert = load_tokenizer(shared / "data/vocab/bert-base-uncased-vocab.txt")
    gpt2 = load_tokenizer(shared / "data/vocab")
    lm1b, openwebtext = protocol("lm1b"), protocol("openwebtext")
    lm1b.check(bert, lm1b.rows)
    openwebtext.check(gpt2, openwebtext.rows)
    for chosen, other in ((lm1b, gpt2), (openwebtext, bert)):
        with pytest.raises(ConfigError, match=f"a tokenizer that is not {chosen.tokenizer}"):
            chosen.check(other, chosen.rows)


@pytest.mark.parametrize("name", ["lm1b", "openwebtext"])
def test_rows_are_those_of_the_published_runs(name):
    assert recipe(f"{name}-adlm").data.packing == PROTOCOLS[name].rows


def test_a_text_of_another_size_is_said_to_be_a_cut_of_our_own(tmp_path):
    text8 = protocol("text8")
    (tmp_path / "text8").write_text("the quick brown fox " * 2000)
    source = text8.open(str(tmp_path))
    size = sum(len(piece.text) for piece in source.pieces("test"))
    own = f"{size:,} characters of text, a cut of our own; the published split has 5,000,000"
    assert text8.departures(source, text8.rows, None) == [own]
    assert not replace(text8, size=("characters", size)).departures(source, text8.rows, None)
    assert text8.departures(source, Wrapped(256), 2) == [
        own,
        "of these the first 2 rows alone",
        f"the model was trained on other rows, {Wrapped(256)}",
    ]


def test_a_protocol_is_that_of_one_text(tmp_path):
    with pytest.raises(ConfigError, match="it is that of 'text8'"):
        protocol("text8").open("lm1b")


def test_one_sentence_a_row_is_read_from_the_usual_file(shared, tmp_path):
    bert = load_tokenizer(shared / "data/vocab/bert-base-uncased-vocab.txt")
    with (shared / "data/lm1b/news.en.heldout-00000-of-00050").open() as file:
        (tmp_path / "news.en.heldout-00000-of-00050").write_text("".join(islice(file, 300)))
    lm1b = protocol("lm1b")
    source = lm1b.open(str(tmp_path))
    table = packed_rows(source, "test", bert, lm1b.rows)
    assert len(table) == table.read == 300
    assert lm1b.departures(source, lm1b.rows, None)[0].startswith("300 documents")
    assert (table.row_lengths <= 128).all()
    assert (table.text[table.starts] == bert.roles.bos_id).all()


def test_what_counts_is_said_for_every_packing():
    assert "begin and end tokens are scored" in counting(Wrapped(8, framed=True))
    assert "end tokens are scored" in counting(Wrapped(8))
    assert "text alone is scored" in counting(Wrapped(8, separated=False))
    assert "padding is neither seen nor scored" in counting(Padded(8))
    assert "padding is neither seen nor scored" in counting(Wrapped(8), documents=True)
    assert "padding is scored" in counting(Padded(8, predict_padding=True))


def test_what_decides_a_figure_is_described_and_estimation_is_apart():
    options = {"draws": 8, "documents": True, "stride": 4, "limit": 9}
    tokenizer = characters()
    one, two = (described(Padded(8), tokenizer, ESTIMATORS[name], **options) for name in ("counts", "exact"))
    assert one.pop("estimator") != two.pop("estimator")
    assert one == two
    other = described(Padded(8), tokenizer, ESTIMATORS["counts"], **{**options, "stride": 8})
    assert other["rows"] != one["rows"]


def test_protocols_are_values():
    assert {field.name for field in fields(PROTOCOLS["lm1b"])} >= {"data", "split", "tokenizer", "rows"}
    assert all(name == each.name for name, each in PROTOCOLS.items())
    assert hash(PROTOCOLS["lm1b"]) != hash(PROTOCOLS["text8"])
