import pytest

from adlm.cli import main


def run(capsys, *words):
    code = main(["recipes", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_list_has_every_kind_in_every_size(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    for name in ("ar-nano", "mdlm-micro", "adlm-tiny", "a2r-small", "adlm-medium"):
        assert name in out


def test_a_recipe_shows_its_parameters_and_work(capsys):
    code, out, _ = run(capsys, "show", "adlm-small")
    assert code == 0
    assert "293,189,028" in out
    assert "FLOP" in out
    assert '"denoiser_layers": 6' in out


def test_a_smaller_vocabulary_makes_a_smaller_network(capsys):
    _, out, _ = run(capsys, "show", "mdlm-nano", "--vocabulary", "1024", "--length", "64", "--rows", "8")
    assert "8 rows of 64" in out


def test_a_shape_can_be_changed_before_it_is_shown(capsys):
    changes = ["--set", "anchor.width=64", "--set", "denoiser_layers=1", "--set", "hand_over=Continued"]
    code, out, _ = run(capsys, "show", "adlm-nano", *changes)
    assert code == 0
    assert '"width": 64' in out
    assert '"kind": "Continued"' in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "adlm-smal"], "did you mean 'adlm-small'"),
        (["show"], "none named"),
        (["list", "adlm-small"], "adlm recipes show NAME"),
        (["show", "adlm-small", "--set", "anchor.widht=640"], "did you mean 'width'"),
        (["list", "--vocabulary", "1"], "too few"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(capsys, words, message):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert message in err
