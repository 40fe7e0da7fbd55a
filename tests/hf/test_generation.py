"""`generate` of masked models under the names of transformers, and its pipelines."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from adlm.errors import ConfigError, UnknownName  # noqa: E402
from adlm.hf import fast_tokenizer, wrapped  # noqa: E402
from adlm.samplers import Ancestral  # noqa: E402
from tests.hf.made import FRAMED, FULL, LENGTH, LETTERS, WORDS, text_model_of  # noqa: E402

TEXT = text_model_of("adlm")
MODEL = wrapped(TEXT)
TOKENIZER = fast_tokenizer(WORDS, FULL, causal=False)
PROMPT = TOKENIZER("the cat", return_tensors="pt").input_ids
END, MASK = WORDS.roles.eos_id, WORDS.mask_id


def test_without_a_prompt_the_text_is_that_of_the_text_model():
    texts = TOKENIZER.batch_decode(MODEL.generate(seed=5, num_return_sequences=3), skip_special_tokens=True)
    assert texts == TEXT.generate(n=3, seed=5)


def test_same_seed_same_tokens_and_prompts_stay():
    first = MODEL.generate(PROMPT, seed=1, max_new_tokens=6, max_denoising_steps=8)
    assert first.shape == (1, PROMPT.shape[1] + 6)
    assert torch.equal(first[:, : PROMPT.shape[1]], PROMPT)
    assert not bool((first == MASK).any())
    assert torch.equal(first, MODEL.generate(PROMPT, seed=1, max_new_tokens=6, max_denoising_steps=8))
    seeds = {tuple(MODEL.generate(PROMPT, seed=seed, max_new_tokens=6)[0].tolist()) for seed in range(5)}
    assert len(seeds) > 1
    generated = [MODEL.generate(PROMPT, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*generated)
    torch.manual_seed(0)
    once = MODEL.generate(PROMPT)
    torch.manual_seed(0)
    assert torch.equal(once, MODEL.generate(PROMPT))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_prompts_stays_where_it_is_and_changes_nothing(side):
    tokens, mask = torch.full((1, 4), END), torch.zeros(1, 4, dtype=torch.long)
    where = slice(2, 4) if side == "left" else slice(0, 2)
    tokens[:, where], mask[:, where] = PROMPT, 1
    padded = MODEL.generate(tokens, attention_mask=mask, seed=1, max_new_tokens=5)
    assert torch.equal(padded[:, :4], tokens)
    assert torch.equal(padded[:, 4:], MODEL.generate(PROMPT, seed=1, max_new_tokens=5)[:, 2:])


def test_masks_in_a_prompt_are_filled_and_what_follows_the_end_is_padding():
    tokens = torch.tensor([[3, MASK, 4]])
    rows = MODEL.generate(tokens, seed=0, num_return_sequences=40)
    assert rows.shape == (40, LENGTH)
    assert bool((rows[:, 0] == 3).all())
    assert bool((rows[:, 2] == 4).all())
    assert not bool((rows == MASK).any())
    ended = (rows[:, 3:] == END).cumsum(-1) > 0
    assert ended.any()
    assert bool((rows[:, 3:][ended] == MODEL.config.pad_token_id).all())


@pytest.mark.parametrize(
    "sampler",
    ["confidence", {"sampler": "remdm-cap", "eta": 0.1, "steps": 8}, {"block_size": 4, "steps": 4}, Ancestral(steps=4)],
)
def test_sampler_config_takes_samplers_of_this_package(sampler):
    rows = MODEL.generate(PROMPT, seed=1, sampler_config=sampler)
    assert rows.shape == (1, LENGTH)
    assert not bool((rows == MASK).any())


def test_sampler_config_takes_that_of_transformers_own_diffusion_model():
    asked = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.2}
    ours = MODEL.generate(PROMPT, seed=1, sampler_config={"sampler": "entropy-bounded", "gamma": 0.2})
    assert torch.equal(MODEL.generate(PROMPT, seed=1, sampler_config=asked), ours)
    module = pytest.importorskip("transformers.models.diffusion_gemma.generation_diffusion_gemma")
    theirs = module.EntropyBoundSamplerConfig(entropy_bound=0.2)
    assert torch.equal(MODEL.generate(PROMPT, seed=1, sampler_config=theirs), ours)


def test_without_sampling_the_seed_does_not_matter_to_one_step():
    rows = [MODEL.generate(PROMPT, seed=seed, do_sample=False, max_denoising_steps=1) for seed in (1, 2)]
    assert torch.equal(*rows)


def test_a_generation_config_is_read_and_options_come_before_it():
    config = transformers.GenerationConfig(max_new_tokens=3, num_return_sequences=2, do_sample=True)
    assert MODEL.generate(PROMPT, generation_config=config, seed=0).shape == (2, PROMPT.shape[1] + 3)
    assert MODEL.generate(PROMPT, generation_config=config, seed=0, max_new_tokens=4).shape[1] == PROMPT.shape[1] + 4


def test_the_result_can_be_a_dict_and_streamers_see_drafts():
    seen = []

    class Streamer:
        def put(self, tokens):
            seen.append(("put", tokens.shape[-1]))

        def put_draft(self, tokens):
            seen.append(("draft", tokens.shape[-1]))

        def end(self):
            seen.append(("end", 0))

    output = MODEL.generate(PROMPT, seed=1, max_new_tokens=5, return_dict_in_generate=True, streamer=Streamer())
    assert torch.equal(output.sequences, MODEL.generate(PROMPT, seed=1, max_new_tokens=5))
    assert output.tokens_per_forward >= 1
    assert seen[0] == ("put", PROMPT.shape[1])
    assert seen[-2:] == [("put", 5), ("end", 0)]
    assert ("draft", 5) in seen


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_denoising_step": 4}, UnknownName, "did you mean 'max_denoising_steps'"),
        ({"t_min": 0.4}, UnknownName, "'t_min'"),
        ({"num_beams": 2}, UnknownName, "known: .*max_denoising_steps.*sampler_config"),
        ({"sampler_config": {"sampler": "none"}}, UnknownName, "sampler 'none'"),
        ({"sampler_config": {"stepz": 3}}, UnknownName, "stepz"),
        ({"sampler_config": {"_cls_name": "Other"}}, UnknownName, "Other"),
        ({"sampler_config": 3}, ConfigError, "a value of type int"),
        ({"sampler_config": Ancestral(), "top_p": 0.5}, ConfigError, "a sampler is complete"),
        ({"do_sample": False, "temperature": 0.5}, ConfigError, "temperature with do_sample=False"),
        ({"max_new_tokens": 100}, ConfigError, "room for 10 more"),
        ({"max_new_tokens": 0}, ConfigError, "0 more are allowed"),
        ({"num_return_sequences": 0}, ConfigError, "fewer than 1"),
        ({"seed": 1, "generator": torch.Generator()}, ConfigError, "a seed and a generator"),
    ],
)
def test_what_is_not_known_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        MODEL.generate(PROMPT, **options)


def test_rows_that_hide_padding_are_as_long_as_their_text():
    model = wrapped(text_model_of("mdlm-published", rows=FRAMED))
    tokenizer = fast_tokenizer(WORDS, FRAMED, causal=False)
    prompt = tokenizer("the cat", return_tensors="pt").input_ids
    assert prompt[0, 0] == WORDS.roles.bos_id
    assert model.generate(prompt, seed=0, max_new_tokens=2).shape == (1, 5)


def test_the_tokenizer_has_the_same_ids_and_knows_the_mask():
    for ours, rows in ((WORDS, FULL), (LETTERS, FULL)):
        theirs = fast_tokenizer(ours, rows, causal=False)
        text = "a bag" if ours is LETTERS else "the big red cat"
        assert theirs(text).input_ids == ours.encode(text).tolist()
        assert theirs.mask_token_id == ours.mask_id
        assert len(theirs) == ours.vocab_size
        assert theirs.decode(theirs(text).input_ids) == text
    assert TOKENIZER("the [MASK] cat").input_ids == [*WORDS.encode("the"), MASK, *WORDS.encode(" cat")]
    letters = fast_tokenizer(LETTERS, FULL, causal=False)
    assert len(letters("a [MASK]").input_ids) == 3
    causal = fast_tokenizer(WORDS, FRAMED, causal=True)
    assert causal("the cat").input_ids == [MASK, WORDS.roles.bos_id, *WORDS.encode("the cat")]


def test_the_fill_mask_pipeline_fills_in_the_likeliest_token():
    pipe = transformers.pipeline("fill-mask", model=MODEL, tokenizer=TOKENIZER)
    found = pipe("the [MASK] sat", top_k=3)
    tokens = TOKENIZER("the [MASK] sat", return_tensors="pt").input_ids
    best = MODEL(tokens).logits[0, 1].softmax(-1)
    assert [each["token"] for each in found] == best.topk(3).indices.tolist()
    assert found[0]["score"] == pytest.approx(best.max().item())


def test_the_text_generation_pipeline_goes_on_with_both_kinds():
    pipe = transformers.pipeline("text-generation", model=MODEL, tokenizer=TOKENIZER)
    (first,), (again,) = (pipe("the cat", seed=1, max_denoising_steps=8) for _ in range(2))
    assert first == again
    assert first["generated_text"].startswith("the cat")
    causal = wrapped(text_model_of("a2r"))
    tokenizer = fast_tokenizer(WORDS, FULL, causal=True)
    pipe = transformers.pipeline("text-generation", model=causal, tokenizer=tokenizer)
    options = {"do_sample": False, "max_new_tokens": 4}
    together = pipe(["the cat", "a"], batch_size=2, **options)
    assert together == [pipe(text, **options) for text in ("the cat", "a")]
    with pytest.raises(ValueError, match="max_denoising_steps"):
        pipe("the cat", max_denoising_steps=3)
