import pytest

from adlm.data.packing import Padded, Wrapped
from adlm.errors import UnknownName
from adlm.evaluate.zero_shot_sets import PUBLISHED, SETS, chosen_sets, open_sets, wrapped_rows
from tests.errors import raises


def opened(folder, *names, split=None):
    found, missing = open_sets(chosen_sets(names), folder, split=split)
    return {each.set.name: each for each in found}, missing


def documents(each):
    return list(each.source.documents(each.split))


def test_ptb_is_read_from_its_usual_files_and_detokenised(tmp_path):
    folder = tmp_path / "ptb"
    folder.mkdir()
    (folder / "ptb.test.txt").write_text(" the company 's <unk> rose N to $ N million \n he does n't know \n")
    found, missing = opened(tmp_path, "ptb")
    assert not missing
    assert documents(found["ptb"]) == ["the company's ? rose 1 to $1 million", "he doesn't know"]
    assert found["ptb"].departure == "the split test; published figures are on valid"
    (folder / "ptb.valid.txt").write_text(" held out \n")
    found, _ = opened(tmp_path, "ptb")
    assert (found["ptb"].split, found["ptb"].departure) == ("valid", None)
    assert documents(found["ptb"]) == ["held out"]
    assert opened(tmp_path, "ptb", split="test")[0]["ptb"].split == "test"


@pytest.mark.parametrize("header", ["", "label,title,description\n"])
def test_ag_news_is_read_from_its_usual_file(tmp_path, header):
    (tmp_path / "ag_news").mkdir()
    lines = '"3","Fears for T N pension","Unions are ""disappointed"", they say."\n"4","A race","It is on."\n'
    (tmp_path / "ag_news" / "test.csv").write_text(header + lines)
    found, _ = opened(tmp_path, "ag_news")
    assert documents(found["ag_news"]) == [
        'Fears for T N pension Unions are "disappointed", they say.',
        "A race It is on.",
    ]
    assert found["ag_news"].departure is None


def test_wikitext_is_wrapped_line_by_line_as_its_rows_on_the_hub(tmp_path):
    (tmp_path / "wikitext").mkdir()  # its own name serves as well as that of the catalog
    (tmp_path / "wikitext" / "wiki.valid.raw").write_text(" \n = Title = \n \n Some words , and 3 @,@ 000 . \n")
    found, _ = opened(tmp_path, "wikitext")
    lines = documents(found["wikitext"])
    assert len(lines) == 4
    assert lines[0] == lines[2] == ""
    assert lines[3].strip() == "Some words, and 3,000."


def test_sets_that_are_missing_are_named_with_the_reason(tmp_path):
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "lambada_test.jsonl").write_text('{"text": "the last word"}\n')
    (tmp_path / "ag_news").mkdir()
    found, missing = opened(tmp_path, "lambada", "ptb", "ag_news")
    assert list(found) == ["lambada"]
    assert documents(found["lambada"]) == ["\nthe last word"]
    assert missing.keys() == {"ptb", "ag_news"}
    assert "ptb" in str(missing["ptb"])
    assert "usual files" in missing["ag_news"].found


def test_names_are_checked_and_taken_once():
    assert [each.name for each in chosen_sets(["arxiv", "ptb", "arxiv"])] == ["arxiv", "ptb"]
    assert len(chosen_sets([])) == 7
    with raises(UnknownName, subject="lambda"):
        chosen_sets(["lambda"])


def test_published_figures_are_there_for_every_set():
    assert all(figures.keys() == SETS.keys() for figures in PUBLISHED.values())
    assert PUBLISHED["ADLM"]["wikitext"] == 31.94


def test_rows_are_wrapped_whatever_the_model_was_trained_on():
    assert wrapped_rows(Wrapped(64, framed=True)) == Wrapped(64, framed=True)
    assert wrapped_rows(Padded(64, crop=True)) == Wrapped(64)


def test_the_real_files_are_found(shared):
    found, missing = opened(shared / "data")
    assert found.keys() == {"lambada", "wikitext", "lm1b", "pubmed", "arxiv"}
    assert missing.keys() == {"ptb", "ag_news"}
    assert [found[name].split for name in ("lambada", "wikitext", "lm1b", "pubmed")] == [
        "test",
        "valid",
        "test",
        "valid",
    ]
