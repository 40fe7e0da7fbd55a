"""GGUF files, small ones, written here by the format's own rules. The real one is in test_judge.py."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ModelError
from adlm.evaluate.gguf import read_llama

WIDTH, HEADS, KEY_HEADS, HIDDEN = 32, 4, 2, 64
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["<|endoftext|>", *LETTERS, *"0123456789", "Ġ", "Ċ", "ab", "ĊĊ", "12"]
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(item):
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, list) and isinstance(item[0], str):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(string, item))
    if isinstance(item, list):
        return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)
    return struct.pack("<II", 4, item)


def stored(weight, kind):
    """The bytes of a weight, and the weight that they stand for."""
    if kind in (F32, F16):
        short = weight.astype("<f4" if kind == F32 else "<f2")
        return short.tobytes(), short.astype(np.float32)
    data, meant = b"", []
    for block in weight.reshape(-1, 32):
        if kind == Q8_0:
            scale = np.float16(np.abs(block).max() / 127)
            q = np.clip(np.round(block / np.float32(scale)), -127, 127).astype(np.int8)
            data += scale.tobytes() + q.tobytes()
            meant.append(np.float32(scale) * q)
        else:
            low, scale = np.float16(block.min()), np.float16((block.max() - block.min()) / 15)
            q = np.clip(np.round((block - np.float32(low)) / np.float32(scale)), 0, 15).astype(np.uint8)
            data += scale.tobytes() + low.tobytes() + bytes(int(q[i]) | int(q[i + 16]) << 4 for i in range(16))
            meant.append(np.float32(scale) * q + np.float32(low))
    return data, np.concatenate(meant).reshape(weight.shape)


def as_llama_cpp_has_it(weight, heads):
    """Halves of a head become neighbours."""
    rows = weight.reshape(heads, 2, -1, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def gguf(tensors, **changes):
    """The bytes of a file, and the weights that stand in it."""
    values = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEY_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] + [1] * (len(TOKENS) - 1),
        "tokenizer.ggml.merges": ["a b", "Ċ Ċ", "1 2"],
    }
    values |= changes
    head, body, meant = b"", b"", {}
    for name, (weight, kind) in tensors.items():
        data, meant[name] = stored(weight, kind)
        shape = weight.shape[::-1]
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += data + bytes(-len(data) % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    start += b"".join(string(name) + value(item) for name, item in values.items()) + head
    return start + bytes(-len(start) % 32) + body, meant


def small_model():
    rng = np.random.default_rng(0)

    def weight(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "token_embd.weight": (weight(len(TOKENS), WIDTH), Q8_0),
        "blk.0.attn_norm.weight": (weight(WIDTH), F32),
        "blk.0.attn_q.weight": (weight(WIDTH, WIDTH), Q4_1),
        "blk.0.attn_k.weight": (weight(WIDTH // 2, WIDTH), Q4_1),
        "blk.0.attn_v.weight": (weight(WIDTH // 2, WIDTH), F16),
        "blk.0.attn_output.weight": (weight(WIDTH, WIDTH), F32),
        "blk.0.ffn_norm.weight": (weight(WIDTH), F32),
        "blk.0.ffn_gate.weight": (weight(HIDDEN, WIDTH), Q8_0),
        "blk.0.ffn_up.weight": (weight(HIDDEN, WIDTH), Q4_1),
        "blk.0.ffn_down.weight": (weight(WIDTH, HIDDEN), Q4_1),
        "output_norm.weight": (weight(WIDTH), F32),
    }


CONTENT, MEANT = gguf(small_model())


def test_weights_are_those_that_the_blocks_stand_for(tmp_path):
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    llama = read_llama(tmp_path / "m.gguf")
    assert torch.equal(llama.weights["model.embed_tokens.weight"], torch.tensor(MEANT["token_embd.weight"]))
    assert torch.equal(llama.weights["model.layers.0.mlp.up_proj.weight"], torch.tensor(MEANT["blk.0.ffn_up.weight"]))
    assert torch.equal(
        llama.weights["model.layers.0.self_attn.v_proj.weight"], torch.tensor(MEANT["blk.0.attn_v.weight"])
    )
    assert llama.config["rope_theta"] == 5000
    assert llama.config["tie_word_embeddings"]
    assert len(llama.weights) == len(MEANT)


@pytest.mark.parametrize(("name", "ours", "heads"), [("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KEY_HEADS)])
def test_queries_and_keys_come_back_in_the_order_of_halves(tmp_path, name, ours, heads):
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    found = read_llama(tmp_path / "m.gguf").weights[f"model.layers.0.self_attn.{ours}.weight"]
    stored_rows = MEANT[f"blk.0.{name}.weight"]
    assert np.array_equal(as_llama_cpp_has_it(found.numpy(), heads), stored_rows)
    assert not np.array_equal(found.numpy(), stored_rows)


def test_digits_are_tokens_of_their_own_and_end_a_run_of_spaces(tmp_path):
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    tokenizer = read_llama(tmp_path / "m.gguf").tokenizer
    assert tokenizer.encode("ab\n\n12", add_special_tokens=False).tokens == ["ab", "ĊĊ", "1", "2"]
    assert "<|endoftext|>" not in tokenizer.encode("a<|endoftext|>", add_special_tokens=False).tokens


def test_a_large_head_of_its_own_is_read_too(tmp_path):
    head = (np.ones((len(TOKENS), WIDTH), np.float32), F32)
    content, _ = gguf({**small_model(), "output.weight": head})
    (tmp_path / "m.gguf").write_bytes(content)
    llama = read_llama(tmp_path / "m.gguf")
    assert not llama.config["tie_word_embeddings"]
    assert (llama.weights["lm_head.weight"] == 1).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(CONTENT) - 1))
def test_a_file_that_ends_early_is_refused(tmp_path_factory, size):
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(CONTENT[:size])
    with pytest.raises(ModelError):
        read_llama(path)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2000), st.integers(1, 255))
def test_a_damaged_header_is_refused_or_harmless(tmp_path_factory, position, change):
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(CONTENT[:position] + bytes([CONTENT[position] ^ change]) + CONTENT[position + 1 :])
    try:
        read_llama(path)
    except ModelError as error:
        assert "get the file again" in error.fix  # noqa: PT017


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "mamba"}, "the architecture 'mamba'"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "the rules 'llama-bpe'"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, changes, message):
    (tmp_path / "m.gguf").write_bytes(gguf(small_model(), **changes)[0])
    with pytest.raises(ModelError, match=message):
        read_llama(tmp_path / "m.gguf")


def test_unknown_weights_and_missing_files_are_refused(tmp_path):
    content = CONTENT.replace(struct.pack("<QQI", WIDTH, HIDDEN, Q4_1), struct.pack("<QQI", WIDTH, HIDDEN, 14))
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="weights of type 14"):
        read_llama(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="No such file"):
        read_llama(tmp_path / "none.gguf")
