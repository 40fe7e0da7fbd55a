"""Official weights here do what they do there, and come back as they were."""

import json
import math
import zipfile
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from adlm.config import to_json
from adlm.convert.conversion import write_safetensors
from adlm.convert.description import Options
from adlm.convert.from_official import from_official
from adlm.convert.official import BUFFER, METADATA, key_map, to_official
from adlm.convert.pickle_data import Name, read_pickle
from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import Roles, characters
from adlm.errors import ModelError
from adlm.models.hand_over import Continued
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel
from tests.convert.official_files import TINY, ar_weights, save_checkpoint, tiny_weights, tokenizer_json
from tests.errors import raises
from tests.models.test_official import EXPECTED, GOLDEN

AR = {"model.n_heads": 4, "model.length": 24, "model.causal": True, "parameterization": "ar", "backbone": "ar"}


def ordered(weights):
    """In the order of a state_dict of the official networks, which safetensors does not keep."""

    def position(key):
        network, name = key.split(".", 1)
        parts = ("vocab_embed", "sigma_map", "rotary_emb", "blocks", "output_layer")
        inner = ("norm", "attn", "mlp", "linear", "adaLN")
        block = [int(part) for part in name.split(".") if part.isdigit()]
        return network, parts.index(name.split(".")[0]), block[:1], [i for i, part in enumerate(inner) if part in name]

    return OrderedDict(sorted(weights.items(), key=lambda item: position(item[0])))


@pytest.fixture
def checkpoint(tmp_path):
    """An ADLM checkpoint with everything in it, its EMA weights other than its raw ones."""
    weights = ordered(tiny_weights())
    averaged = [value * 0.5 for key, value in weights.items() if not key.endswith(BUFFER)]
    path = tmp_path / "official.ckpt"
    return save_checkpoint(path, weights, averaged=averaged, tokenizer=tokenizer_json()), weights


def test_the_key_map_reads_the_same_both_ways_and_covers_every_parameter():
    for layers, conditioned in (
        ({"backbone": 3, "denoiser": 2}, True),
        ({"backbone": 3}, True),
        ({"backbone": 3}, False),
    ):
        names = key_map(layers, conditioned=conditioned)
        stack = StackConfig(
            width=16,
            heads=2,
            layers=3,
            condition=8 if conditioned else 0,
            attention="causal" if not conditioned else "full",
        )
        network = TwoStageConfig(stack, denoiser_layers=2) if "denoiser" in layers else OneStageConfig(stack)
        ours = [name for name, _ in network.build(Vocabulary(9, 8)).named_parameters()]
        assert sorted(names.values()) == sorted(ours)
        assert len(set(names)) == len(set(names.values()))


def close(model, x_t, anchor_logits, log_p):
    features = model.features(x_t)
    assert (model.anchor_logits(features.anchor) - anchor_logits).abs().max() < 1e-5
    masked = x_t == 38
    ours = model.logits(features.final[masked]).log_softmax(-1)
    assert (ours - log_p[masked])[:, :38].abs().max() < 1e-5


def test_an_official_adlm_gives_the_official_figures(checkpoint):
    path, _ = checkpoint
    made = from_official(path, Options(weights="raw"))
    expected = {key.removeprefix("continuous."): value for key, value in EXPECTED.items()}
    close(made.model, expected["xt"], expected["anchor_logits"], expected["log_p_x0"])
    stack = StackConfig(width=48, heads=3, layers=4, dropout=0.1, condition=32)
    rows = Wrapped(24, framed=True)
    assert made.config == ModelConfig(TwoStageConfig(stack, denoiser_layers=2), Vocabulary(39, 38), rows)
    assert not made.model.training


@pytest.mark.parametrize("weights", ["raw", "ema"])
def test_the_official_checkpoint_gives_its_figures(shared, weights):
    made = from_official(shared / "golden/official_layout_tiny.ckpt", Options(weights=weights))
    expected = load_file(shared / "golden/official_layout_tiny_expected.safetensors")
    close(made.model, expected["xt"], expected[f"{weights}.anchor_logits"], expected[f"{weights}.log_p_x0"])
    assert made.report[0] == "ADLM: 4 + 2 layers, width 48, vocabulary 39, the mask 38, 257,534 parameters"


def test_a_pickle_of_the_official_training_is_understood(tmp_path):
    """With zeros for its tensors; how large they are, the pickle says."""
    sizes = {}

    def stored(identifier):
        sizes[identifier[2]] = identifier[4]

    data = (GOLDEN / "official_layout_tiny.pkl").read_bytes()
    read_pickle(data, where="", makers={Name("torch._utils", "_rebuild_tensor_v2"): lambda _: None}, persistent=stored)
    frequencies = 1 / 10_000 ** (torch.arange(8) / 8)
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as file:
        file.writestr("archive/data.pkl", data)
        for key, elements in sizes.items():
            numbers = frequencies if elements == 8 else torch.zeros(elements)
            file.writestr(f"archive/data/{key}", numbers.numpy().tobytes())
    made = from_official(tmp_path / "a.ckpt")
    stack = StackConfig(width=48, heads=3, layers=4, dropout=0.1, condition=32)
    rows = Wrapped(24, framed=True)
    assert made.config == ModelConfig(TwoStageConfig(stack, denoiser_layers=2), Vocabulary(39, 38), rows)
    assert made.tokenizer.encode("a 4.").tolist() == [0, 31, 30, 32]
    assert made.tokenizer.roles == Roles(39, mask_id=38, eos_id=36, bos_id=35, pad_id=37)
    assert "weights: ema" in made.report


def test_the_backbone_alone_is_an_mdlm_with_the_official_figures(tmp_path):
    weights = {key: value for key, value in ordered(tiny_weights()).items() if key.startswith("backbone.")}
    path = save_checkpoint(tmp_path / "mdlm.ckpt", weights, tokenizer=tokenizer_json())
    made = from_official(path)
    logits = made.model.head.raw(made.model.features(EXPECTED["continuous.xt"]).final)
    assert (logits - EXPECTED["continuous.anchor_logits"]).abs().max() < 1e-5
    assert made.report[0].startswith("MDLM: 4 layers")
    assert "weights: raw, there are no others" in made.report


def test_a_time_conditioned_network_stays_one(tmp_path):
    path = tmp_path / "timed.ckpt"
    weights = ordered(tiny_weights("weights_time."))
    save_checkpoint(path, weights, settings={**TINY, "time_conditioning": True}, tokenizer=tokenizer_json())
    model = from_official(path).model
    expected = {key.removeprefix("time_conditioned."): value for key, value in EXPECTED.items()}
    raw = model.anchor_logits(model.features(expected["xt"], expected["t"]).anchor)
    assert (raw - expected["anchor_logits"]).abs().max() < 1e-5


def official_ar(weights, tokens, heads):
    """log p(x_{l+1} | x_0 ... x_l) at every l, by the published formulas."""
    x = weights["backbone.vocab_embed.embedding"][tokens]
    batch, length, width = x.shape

    def norm(x, name):
        return F.layer_norm(x, (width,)) * weights[f"backbone.{name}.weight"]

    def linear(x, name):
        return F.linear(x, weights[f"backbone.{name}.weight"], weights.get(f"backbone.{name}.bias"))

    angles = torch.arange(length)[:, None] * weights[f"backbone.{BUFFER}"]
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def rotated(x):
        half = x.shape[-1] // 2
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    for n in range(sum(key.endswith("norm1.weight") for key in weights)):
        block = f"blocks.{n}."
        q, k, v = linear(norm(x, block + "norm1"), block + "attn_qkv").view(batch, length, 3, heads, -1).unbind(2)
        scores = torch.einsum("blhd,bmhd->bhlm", rotated(q), rotated(k)) / math.sqrt(width // heads)
        seen = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf).softmax(-1)
        x = x + linear(torch.einsum("bhlm,bmhd->blhd", seen, v).reshape(x.shape), block + "attn_out")
        x = x + linear(F.gelu(linear(norm(x, block + "norm2"), block + "mlp.0"), approximate="tanh"), block + "mlp.2")
    logits = linear(norm(x, "output_layer.norm_final"), "output_layer.linear")
    logits[..., -1] = -1000  # the mask
    return logits.log_softmax(-1)


def test_an_official_ar_model_predicts_the_same_tokens_with_the_same_chances(tmp_path):
    """Its rows begin with a begin token; ours with what follows, and start from its embedding."""
    weights = ar_weights()
    path = save_checkpoint(tmp_path / "ar.ckpt", weights, settings=AR, tokenizer=tokenizer_json())
    made = from_official(path)
    bos = made.tokenizer.roles.bos_id
    text = torch.randint(0, 34, (3, 23), generator=torch.Generator().manual_seed(0))
    theirs = official_ar(weights, F.pad(text, (1, 0), value=bos), heads=4)[:, :-1]
    ours = made.model.logits(made.model.features(text).final).log_softmax(-1)
    assert (ours - theirs)[..., :38].abs().max() < 1e-5
    assert made.config.packing == Wrapped(23)
    assert made.config.packing.frame(made.tokenizer.roles) == ([], [made.tokenizer.roles.eos_id])
    assert made.config.network == OneStageConfig(StackConfig(width=32, heads=4, layers=2, attention="causal"))


def test_only_the_unread_embedding_of_an_official_ar_model_changes(tmp_path):
    weights = ar_weights()
    path = save_checkpoint(tmp_path / "ar.ckpt", weights, settings=AR, tokenizer=tokenizer_json())
    made = from_official(path)
    back, _ = to_official(made.model, made.config, asked="")
    assert back.keys() == weights.keys()
    key = "backbone.vocab_embed.embedding"
    assert all(torch.equal(back[name], weights[name]) for name in weights if name != key)
    assert torch.equal(back[key][:38], weights[key][:38])
    assert torch.equal(back[key][38], weights[key][made.tokenizer.roles.bos_id])


def test_official_weights_come_back_to_the_bit(checkpoint, tmp_path):
    path, weights = checkpoint
    made = from_official(path, Options(weights="raw"))
    save_model(tmp_path / "model", made.model, made.config, made.tokenizer)
    model, config, _ = load_model(tmp_path / "model")
    write_safetensors(tmp_path / "back.safetensors", *to_official(model, config, asked=""))
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[key], weights[key]) for key in weights)


@pytest.mark.parametrize(
    ("network", "rows"),
    [
        (
            TwoStageConfig(StackConfig(width=16, heads=2, layers=2, condition=8, timed=True), denoiser_layers=1),
            Wrapped(16),
        ),
        (OneStageConfig(StackConfig(width=16, heads=2, layers=2, condition=8)), Padded(16, crop=True)),
        (
            OneStageConfig(StackConfig(width=16, heads=2, layers=2, attention="causal", dropout=0.2)),
            Wrapped(16, framed=True),
        ),
    ],
)
def test_our_models_go_to_official_and_back_to_the_bit(network, rows, tmp_path):
    """A left-to-right model too, which keeps its own start: the file says that it was written here."""
    tokenizer = characters()
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), rows)
    model = config.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    save_model(tmp_path / "model", model, config, tokenizer)
    write_safetensors(tmp_path / "official.safetensors", *to_official(model, config, asked=""))
    made = from_official(tmp_path / "official.safetensors", Options(tokenizer=str(tmp_path / "model")))
    assert made.config == config
    assert made.tokenizer.fingerprint == tokenizer.fingerprint
    ours, theirs = model.state_dict(), made.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with raises(ModelError, subject="heads"):
        from_official(tmp_path / "official.safetensors", Options(heads=2, mask_id=0))


@pytest.mark.parametrize(
    ("network", "subject"),
    [
        (OneStageConfig(StackConfig(condition=8, convolution=3)), "stack.convolution=3"),
        (
            OneStageConfig(StackConfig(condition=8, query_key_norm=True), tied=True),
            "stack.query_key_norm=True, tied=True",
        ),
        (OneStageConfig(StackConfig()), "causal=False with condition=0"),
        (OneStageConfig(StackConfig(attention="causal", condition=8)), "causal=True with condition=8"),
        (TwoStageConfig(StackConfig(attention="causal")), "causal=True with condition=0"),
        (TwoStageConfig(StackConfig(condition=8), hand_over=Continued()), "hand_over=Continued"),
        (TwoStageConfig(StackConfig(condition=8), positions=16), "positions=16"),
        (OneStageConfig(StackConfig(condition=8, mlp_ratio=2)), "stack.mlp_ratio=2"),
    ],
)
def test_what_the_official_code_has_not_is_named(network, subject):
    config = ModelConfig(network, Vocabulary(9, 8), Wrapped(16))
    with raises(ModelError, subject=subject):
        to_official(config.build(), config, asked="asked")


def test_old_files_call_the_denoiser_replica(checkpoint, tmp_path):
    path, weights = checkpoint
    older = {key.replace("denoiser.", "replica."): value for key, value in weights.items()}
    # As some files have it: the second network first. EMA weights are in the order of the training code regardless.
    older = OrderedDict(sorted(older.items(), key=lambda item: item[0].startswith("backbone")))
    averaged = [value * 0.5 for key, value in weights.items() if not key.endswith(BUFFER)]
    save_checkpoint(tmp_path / "old.ckpt", older, averaged=averaged, tokenizer=tokenizer_json(), protocol=4)
    for choice in ("raw", "ema"):
        new, old = (from_official(p, Options(weights=choice)).model for p in (path, tmp_path / "old.ckpt"))
        assert all(torch.equal(a, b) for a, b in zip(new.parameters(), old.parameters(), strict=True))
    save_checkpoint(tmp_path / "both.ckpt", {**weights, **older}, tokenizer=tokenizer_json())
    with raises(ModelError, subject="replica"):
        from_official(tmp_path / "both.ckpt")


def test_averaged_weights_are_taken_where_there_are_any(checkpoint):
    path, weights = checkpoint
    names = key_map({"backbone": 4, "denoiser": 2}, conditioned=True)
    for choice, factor in ((None, 0.5), ("ema", 0.5), ("raw", 1.0)):
        made = from_official(path, Options(weights=choice))
        parameters = dict(made.model.named_parameters())
        assert all(torch.equal(parameters[ours], weights[theirs] * factor) for theirs, ours in names.items())
        assert f"weights: {'raw' if choice == 'raw' else 'ema'}" in made.report


def test_averaged_weights_that_do_not_fit_are_refused(tmp_path):
    weights = ordered(tiny_weights())
    averaged = [value for key, value in weights.items() if not key.endswith(BUFFER)]
    cases = {
        "ema": averaged[:-1],
        "backbone.vocab_embed.embedding": averaged[1:] + averaged[:1],
        "ema.shadow_params": ["text"] * len(averaged),
    }
    for subject, bad in cases.items():
        save_checkpoint(tmp_path / "bad.ckpt", weights, averaged=bad, tokenizer=tokenizer_json())
        with raises(ModelError, subject=subject):
            from_official(tmp_path / "bad.ckpt")
    save_checkpoint(tmp_path / "none.ckpt", weights, tokenizer=tokenizer_json())
    with raises(ModelError, subject="weights"):
        from_official(tmp_path / "none.ckpt", Options(weights="ema"))


def test_missing_and_unknown_keys_are_listed(tmp_path):
    weights = ordered(tiny_weights())
    del weights["backbone.blocks.2.norm1.weight"], weights["denoiser.vocab_embed.0.bias"]
    weights |= {f"extra.{n:02}": torch.zeros(1) for n in range(30)}
    path = save_checkpoint(tmp_path / "bad.ckpt", weights, tokenizer=tokenizer_json())
    with raises(ModelError, subject="backbone.blocks.2.norm1.weight") as error:
        from_official(path)
    listed = ("backbone.blocks.2.norm1.weight", "denoiser.vocab_embed.0.bias", *(f"extra.{n:02}" for n in range(20)))
    assert all(name in error.value.found for name in listed)
    assert "extra.20" not in error.value.found  # the first 20 are enough


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"backbone.blocks.1.attn_qkv.weight": torch.zeros(144, 47)}, "anchor.blocks.1.qkv.weight"),
        ({"backbone.vocab_embed.embedding": torch.zeros(())}, "embedding"),
        ({"backbone.vocab_embed.embedding": torch.zeros(39, 0)}, "embedding"),
        ({"backbone.sigma_map.mlp.0.weight": torch.zeros(())}, "anchor.blocks.0.modulation.bias"),
        ({"denoiser.vocab_embed.0.weight": torch.zeros(48, 39, dtype=torch.long)}, "hand_over.project.weight"),
        ({"backbone.output_layer.linear.bias": torch.full((39,), math.nan)}, "anchor_head.bias"),
        ({f"backbone.{BUFFER}": torch.ones(8)}, f"backbone.{BUFFER}"),
        ({f"backbone.{BUFFER}": torch.ones(0)}, f"backbone.{BUFFER}"),
        ({f"backbone.{BUFFER}": 1 / 10_000 ** (torch.arange(12) / 12)}, "heads"),
        ({f"backbone.{BUFFER}": "text"}, f"backbone.{BUFFER}"),
    ],
)
def test_weights_that_do_not_belong_together_are_refused(change, subject, tmp_path):
    path = save_checkpoint(tmp_path / "bad.ckpt", {**ordered(tiny_weights()), **change}, tokenizer=tokenizer_json())
    with raises(ModelError, subject=subject):
        from_official(path)


def test_an_mlp_without_a_width_is_refused(tmp_path):
    weights = {**ordered(tiny_weights()), "backbone.blocks.0.mlp.0.weight": torch.zeros(())}
    path = save_checkpoint(tmp_path / "bad.ckpt", weights, tokenizer=tokenizer_json())
    with raises(ModelError, subject="mlp_ratio"):
        from_official(path)


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({**TINY, "parameterization": "sedd"}, "time_conditioning"),
        ({**TINY, "time_conditioning": True, "noise.type": "linear"}, "noise"),
        ({**TINY, "training.change_of_variables": True, "time_conditioning": True}, "noise"),
        ({**TINY, "model.causal": True}, "causal"),
        ({**TINY, "model.n_heads": 4}, "heads"),
        ({**TINY, "model.length": "${data.length}"}, "length"),
        ({**TINY, "model.length": 3}, "length"),
        (None, "length"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(settings, subject, tmp_path):
    path = save_checkpoint(tmp_path / "bad.ckpt", tiny_weights(), settings=settings, tokenizer=tokenizer_json())
    with raises(ModelError, subject=subject):
        from_official(path)


def test_options_stand_in_for_a_configuration(tmp_path):
    weights = {key: value for key, value in tiny_weights().items() if not key.endswith(BUFFER)}
    save_file(weights, tmp_path / "plain.safetensors")
    save_model_tokenizer = tmp_path / "tokenizer.json"
    save_model_tokenizer.write_text(tokenizer_json())
    given = {"length": 32, "tokenizer": str(save_model_tokenizer)}
    with raises(ModelError, subject="heads"):
        from_official(tmp_path / "plain.safetensors", Options(**given))
    with raises(ModelError, subject="tokenizer"):
        from_official(tmp_path / "plain.safetensors", Options(length=32, heads=3))
    made = from_official(tmp_path / "plain.safetensors", Options(**given, heads=3, rows="crop", timed=True))
    assert made.config.packing == Padded(32, crop=True)
    assert made.config.network.anchor.timed
    assert (made.tokenizer.mask_id, made.config.vocabulary) == (38, Vocabulary(39, 38))


def test_rows_follow_the_configuration(tmp_path):
    weights, text = tiny_weights(), tokenizer_json()
    made = from_official(
        save_checkpoint(tmp_path / "a", weights, settings={**TINY, "data.wrap": False}, tokenizer=text)
    )
    assert made.config.packing == Padded(24, crop=True)
    path = save_checkpoint(tmp_path / "b", ar_weights(), settings={**AR, "data.wrap": False}, tokenizer=text)
    assert from_official(path).config.packing == Padded(23, begin=False, crop=True)


def test_the_roles_of_the_carried_tokenizer_are_the_official_ones(checkpoint):
    roles = from_official(checkpoint[0]).tokenizer.roles
    assert (roles.bos_id, roles.eos_id, roles.pad_id, roles.mask_id, roles.vocab_size) == (35, 36, 37, 38, 39)


def test_the_mask_keeps_the_id_that_the_official_code_gives_to_padding_too(tmp_path):
    """A tokenizer without padding, as GPT-2's, gets a [PAD] after its vocabulary, where the mask is as well."""
    text = tokenizer_json(special=("<unk>", "<|endoftext|>"), added=("[PAD]",))
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "[PAD]"}
    path = save_checkpoint(tmp_path / "a.ckpt", tiny_weights(), tokenizer=text, special=special)
    tokenizer = from_official(path).tokenizer
    assert tokenizer.backend.token_to_id("[PAD]") is None
    assert (tokenizer.mask_id, tokenizer.roles.pad_id, tokenizer.roles.eos_id) == (38, 37, 37)


def test_a_mask_of_the_tokenizer_is_the_models(tmp_path):
    text = tokenizer_json(ids=39, special=("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad")}
    path = save_checkpoint(tmp_path / "a.ckpt", tiny_weights(), tokenizer=text, special=special)
    roles = from_official(path).tokenizer.roles
    assert (roles.bos_id, roles.eos_id, roles.mask_id, roles.pad_id) == (35, 36, 37, 38)


def test_a_vocabulary_rounded_up_is_filled_with_unused_tokens(tmp_path):
    text = tokenizer_json(ids=34)
    path = save_checkpoint(tmp_path / "a.ckpt", tiny_weights(), tokenizer=text)
    made = from_official(path)
    assert (made.tokenizer.mask_id, made.tokenizer.vocab_size) == (34, 39)
    assert "the model has 4 ids more than its tokenizer; they are marked as unused there" in made.report
    save_model(tmp_path / "model", made.model, made.config, made.tokenizer)
    assert load_model(tmp_path / "model")[2].roles == made.tokenizer.roles
    assert from_official(path, Options(mask_id=38)).tokenizer.mask_id == 38
    with raises(ModelError, subject="mask_id"):
        from_official(path, Options(mask_id=33))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    path = save_checkpoint(tmp_path / "a.ckpt", tiny_weights(), tokenizer=tokenizer_json(ids=60))
    with raises(ModelError, subject="tokenizer"):
        from_official(path)
    weights = ar_weights(ids=1000)
    path = save_checkpoint(tmp_path / "b.ckpt", weights, settings=AR, tokenizer=tokenizer_json())
    with raises(ModelError, subject="tokenizer"):
        from_official(path)


@pytest.mark.parametrize("text", ["{}", "no json", '{"version": "1.0", "model": {"type": "BPE"}}', "\ud800"])
def test_a_carried_tokenizer_that_cannot_be_read_is_answered(text, tmp_path):
    path = save_checkpoint(tmp_path / "a.ckpt", tiny_weights(), tokenizer=text)
    with raises(ModelError, subject="tokenizer"):
        from_official(path)


def test_metadata_of_another_model_is_refused(tmp_path):
    """A file may claim any depth; nothing is built before it is compared with the weights."""
    config = ModelConfig(OneStageConfig(StackConfig(layers=10**9, condition=8)), Vocabulary(39, 38), Wrapped(16))
    small = OneStageConfig(StackConfig(width=16, heads=2, layers=1, condition=8))
    model = small.build(Vocabulary(39, 38))
    weights, _ = to_official(model, ModelConfig(small, Vocabulary(39, 38), Wrapped(16)), asked="")
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    options = Options(tokenizer=str(tmp_path / "tokenizer.json"))
    for text, subject in ((json.dumps(to_json(config)), "network"), ("{", METADATA), ("[]", METADATA)):
        write_safetensors(tmp_path / "bad.safetensors", weights, {METADATA: text})
        with raises(ModelError, subject=subject):
            from_official(tmp_path / "bad.safetensors", options)


def test_files_that_are_not_there_or_not_whole_are_answered(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"not safetensors")
    (tmp_path / "a.ckpt").write_bytes(b"text")
    for name in ("none.ckpt", "none.safetensors"):
        with raises(ModelError, subject=str(tmp_path / name)):
            from_official(tmp_path / name)
    for name in ("a.safetensors", "a.ckpt"):
        with raises(ModelError, subject=name):
            from_official(tmp_path / name)
    torch.save([1], tmp_path / "list.ckpt")
    with raises(ModelError, subject="state_dict"):
        from_official(tmp_path / "list.ckpt")


def test_a_converted_model_writes_text(checkpoint):
    made = from_official(checkpoint[0])
    (text,) = TextModel(made.model, made.config, made.tokenizer).generate(seed=1)
    assert isinstance(text, str)
    assert text
