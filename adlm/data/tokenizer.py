"""Text to token ids and back, with the roles a diffusion model needs.

A `Tokenizer` wraps a Hugging Face fast tokenizer and decides once what the mask token is, how large the
vocabulary is with it, and which ids begin, end and pad a row. Both are stored together, so that a model and
its data can never disagree. Special tokens written out in a text are read as plain text: a document that
contains "[MASK]" does not contain a mask.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from adlm.data.chat_template import CHAT_TEMPLATE, read_chat_template
from adlm.data.tokenizer_growth import check_growth
from adlm.errors import AdlmError, ConfigError, DataError, OutOfRange

MASK = "[MASK]"
END = "<|endoftext|>"
_FILE, _ROLES_FILE = "tokenizer.json", "tokenizer_roles.json"
_OWN = ("added_tokens", "post_processor")  # what transformers needs otherwise than we do
_SPACING = ("normalizer", "pre_tokenizer", "decoder")
# A word with the space before it, or a mark, or a run of space: joined again they give the text back.
_WORDS = r" ?\w+| ?[^\w\s]|\s+"
_CHARACTERS = r"[\s\S]"


@dataclass(frozen=True)
class Roles:
    """Which ids do what. `vocab_size` counts the mask token, and every id below it may be fed to a model."""

    vocab_size: int
    mask_id: int
    eos_id: int
    bos_id: int
    pad_id: int


class Tokenizer:
    """A tokenizer with its roles.

    Args:
        chat_template: how chats are written, in the language of jinja2; None if the model knows no chats.
    """

    def __init__(self, backend: Backend, roles: Roles, chat_template: str | None = None) -> None:
        self.backend, self.roles, self.chat_template = backend, roles, chat_template
        backend.encode_special_tokens = True
        backend.no_padding()
        backend.no_truncation()

    def __reduce__(self) -> tuple[object, tuple[str, Roles, str | None]]:
        return _restore, (self.backend.to_str(), self.roles, self.chat_template)

    @property
    def vocab_size(self) -> int:
        return self.roles.vocab_size

    @property
    def mask_id(self) -> int:
        return self.roles.mask_id

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of everything that decides the ids."""
        text = json.dumps([json.loads(self.backend.to_str()), asdict(self.roles)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def _character_table(self) -> NDArray[np.int64] | None:
        """Code point -> id for character tokenizers, which a table reads about eight times faster."""
        description = json.loads(self.backend.to_str())
        splits = description["pre_tokenizer"] or {}
        if description["model"]["type"] != "WordLevel" or splits.get("pattern") != {"Regex": _CHARACTERS}:
            return None
        vocabulary = description["model"]["vocab"]
        points = {ord(token): index for token, index in vocabulary.items() if len(token) == 1}
        table = np.full(max(points) + 2, vocabulary[description["model"]["unk_token"]])
        table[list(points)] = list(points.values())
        return table

    @cached_property
    def _inside(self) -> Backend:
        """For what stands within a text: the backend without the space that some put before every text."""
        description = json.loads(self.backend.to_str())
        text = json.dumps({**description, **{part: _unspaced(description[part]) for part in _SPACING}})
        if json.loads(text) == description:
            return self.backend
        inside = Backend.from_str(text)
        inside.encode_special_tokens = True
        return inside

    def encode(self, text: str, *, first: bool = True) -> NDArray[np.int64]:
        """The ids of a text, without begin or end tokens.

        Args:
            first: whether the text begins here; otherwise it continues other text.
        """
        return self.encode_batch([text], first=first)[0]

    def encode_known(self, text: str, *, first: bool = True) -> NDArray[np.int64]:
        """As `encode`, for text whose every part matters: what the vocabulary has no token for is refused."""
        ids = self.encode(text, first=first)
        if not (pieces := self._unknown_parts(text, ids)):
            return ids
        fix = "write it without extra spaces" if not all(map(str.strip, pieces)) else "use words that the model knows"
        raise ConfigError(
            f"the tokenizer has no token for {', '.join(map(repr, pieces[:8]))}{', ...' * (len(pieces) > 8)}",
            fix=fix,
            subject=pieces[0].strip() or pieces[0],
        )

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that the vocabulary has no token for."""
        return self._unknown_parts(text, self.encode(text))

    @property
    def knows_all_words(self) -> bool:
        """Whether any text has tokens."""
        return self._unknown_id is None

    def _unknown_parts(self, text: str, ids: NDArray[np.int64]) -> list[str]:
        if self._unknown_id is None or not (unknown := np.flatnonzero(ids == self._unknown_id)).size:
            return []
        offsets = self.offsets(text)
        return list(dict.fromkeys(text[slice(*offsets[i])] for i in unknown.tolist()))

    @cached_property
    def _unknown_id(self) -> int | None:
        """What is not in the vocabulary; None if any text has tokens."""
        model = json.loads(self.backend.to_str())["model"]
        if isinstance(number := model.get("unk_id"), int):
            return number
        return self.backend.token_to_id(model["unk_token"]) if model.get("unk_token") else None

    def encode_batch(self, texts: Sequence[str], *, first: bool = True) -> list[NDArray[np.int64]]:
        """As `encode`, for many; in parallel unless TOKENIZERS_PARALLELISM is false."""
        table = self._character_table
        if table is not None:
            points = (np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32) for text in texts)
            return [table[np.minimum(p, len(table) - 1)] for p in points]
        backend = self.backend if first else self._inside
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int64) for encoding in encodings]

    @cached_property
    def _reading_specials(self) -> Backend:
        return Backend.from_str(self.backend.to_str())

    def encode_with_specials(self, text: str) -> list[int]:
        """As `encode`, for text that is no stranger's: special tokens written out in it are read as such."""
        return self._reading_specials.encode(text, add_special_tokens=False).ids

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """The special tokens of the vocabulary, by their ids."""
        added = self.backend.get_added_tokens_decoder().items()
        return {index: token.content for index, token in added if token.special}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The span [first character, last + 1) of each id of `encode(text)`."""
        return self.backend.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids. Special tokens leave no trace."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, index: int) -> str:
        """The text of one id, readable for people."""
        return MASK if index == self.mask_id else self._inside.decode([index], skip_special_tokens=False)

    def save(self, folder: Path, *, shown: Backend | None = None) -> None:
        """Write `tokenizer.json`, `tokenizer_roles.json` and the chat template, if there is one.

        Args:
            shown: another version of the backend for `tokenizer.json`, with the same vocabulary. `load_tokenizer`
                restores this one: added tokens and post-processor are kept with the roles.
        """
        folder.mkdir(parents=True, exist_ok=True)
        roles: dict[str, Any] = asdict(self.roles)
        if shown is not None:
            own = json.loads(self.backend.to_str())
            roles["own"] = {part: own[part] for part in _OWN}
        # Its own way of saving raises a bare Exception where the system refuses to write.
        (folder / _FILE).write_text((shown or self.backend).to_str(pretty=True), encoding="utf-8")
        (folder / _ROLES_FILE).write_text(json.dumps(roles, indent=2) + "\n")
        if self.chat_template is not None:
            (folder / CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")


def _unspaced(part: Any) -> Any:
    """A part of a tokenizer's description without the space before every text, as sentencepiece has it."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "Sequence":
        inside = next(key for key in ("normalizers", "pretokenizers", "decoders") if key in part)
        kept = [_unspaced(each) for each in part[inside] if not _adds_space(each)]
        return {**part, inside: kept}
    if kind == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    return None if _adds_space(part) else part


def _adds_space(part: dict[str, Any]) -> bool:
    return part.get("type") == "Prepend" or (part.get("type") == "Strip" and part.get("content") == " ")


def _restore(text: str, roles: Roles, chat_template: str | None = None) -> Tokenizer:
    return Tokenizer(Backend.from_str(text), roles, chat_template)


def with_roles(backend: Backend, chat_template: str | None = None) -> Tokenizer:
    """Decide the roles of a bare tokenizer, appending a mask token where there is none."""
    vocabulary = backend.get_vocab(with_added_tokens=True)

    def first(*names: str) -> int | None:
        return next((vocabulary[name] for name in names if name in vocabulary), None)

    eos = first(END, "</s>", "[SEP]", "<|end_of_text|>", "<eos>", "<|im_end|>")
    if eos is None:
        raise ConfigError(
            "the tokenizer has no end-of-text token (looked for <|endoftext|>, </s>, [SEP], ...)",
            fix=f"add one, for example {END}",
            subject="eos",
        )
    bos = first(END, "<s>", "[CLS]", "<|begin_of_text|>", "<bos>", "<|im_start|>")
    pad = first("[PAD]", "<pad>", "<|pad|>")
    mask = first(MASK, "<mask>", "<|mask|>")
    size = max(vocabulary.values()) + 1
    if mask is None:
        mask, size = size, size + 1
    roles = Roles(size, mask, eos, eos if bos is None else bos, eos if pad is None else pad)
    return Tokenizer(backend, roles, chat_template)


def load_tokenizer(name: str | Path, *, revision: str | None = None) -> Tokenizer:
    """A tokenizer from a folder, a file, or the Hugging Face Hub.

    A folder may hold one saved by this package, a `tokenizer.json`, GPT-2's `encoder.json` + `vocab.bpe`
    (or `vocab.json` + `merges.txt`), or BERT's `vocab.txt`.
    """
    path = Path(name)
    try:
        if path.is_dir():
            return _from_folder(path)
        if path.is_file():
            if path.suffix == ".txt":
                return _bert(path)
            check_growth(path.read_text(encoding="utf-8"), str(path))
            return with_roles(Backend.from_file(str(path)))
    except AdlmError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        raise DataError(f"cannot load the tokenizer {name}: {error}", subject=str(name)) from error
    return _from_hub(str(name), revision)


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / _FILE).exists():
        text = (folder / _FILE).read_text(encoding="utf-8")
        check_growth(text, str(folder / _FILE))
        template = read_chat_template(folder)
        if not (folder / _ROLES_FILE).exists():
            return with_roles(Backend.from_str(text), template)
        roles = json.loads((folder / _ROLES_FILE).read_text(encoding="utf-8"))
        own = roles.pop("own", None)
        if own is not None:
            text = json.dumps({**json.loads(text), **{part: own[part] for part in _OWN}})
        return _restore(text, Roles(**roles), template)
    for vocabulary, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        if (folder / vocabulary).exists() and (folder / merges).exists():
            return _byte_level(models.BPE.from_file(str(folder / vocabulary), str(folder / merges)))
    for file in sorted(folder.glob("*vocab.txt")):
        return _bert(file)
    raise DataError(
        f"{folder} has none of tokenizer.json, encoder.json + vocab.bpe, vocab.json + merges.txt, vocab.txt",
        fix="name a folder that holds one of these",
        subject=str(folder),
    )


def _from_hub(name: str, revision: str | None) -> Tokenizer:
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(name, _FILE, revision=revision)
        check_growth(Path(file).read_text(encoding="utf-8"), name)
        return with_roles(Backend.from_file(file))
    except AdlmError:
        raise
    except Exception as error:
        raise DataError(
            f"cannot find the tokenizer {name!r}",
            f"no file or folder of that name here, and the Hub gave {type(error).__name__}: {error}".splitlines()[0],
            "name an existing file or folder, or check the name and the network",
            subject=name,
        ) from error


def _byte_level(model: models.Model) -> Tokenizer:
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True)])
    return with_roles(backend)


def _bert(vocabulary: Path) -> Tokenizer:
    return with_roles(BertWordPieceTokenizer.from_file(str(vocabulary), lowercase=True)._tokenizer)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of `vocab_size` ids, the mask among them."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if vocab_size < 258:
        raise OutOfRange("vocab_size", vocab_size, "at least 258: 256 bytes, the end token and the mask token")
    backend.train_from_iterator(_some(texts), trainer)
    return with_roles(backend)


def train_words(texts: Iterable[str], vocab_size: int = 65_536) -> Tokenizer:
    """Train a tokenizer with one token per word (with the space before it) and per mark: for small vocabularies."""
    backend = Backend(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    backend.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size - 1, special_tokens=[END, "<unk>"], show_progress=False, min_frequency=0
    )
    backend.train_from_iterator(_some(texts), trainer)
    return with_roles(backend)


def characters(alphabet: str = " abcdefghijklmnopqrstuvwxyz") -> Tokenizer:
    """A tokenizer with one token per character; text8's 27 by default."""
    vocabulary = {token: index for index, token in enumerate([*dict.fromkeys(alphabet), "<unk>"])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_CHARACTERS), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("<unk>", special=True), AddedToken(END, special=True)])
    return with_roles(backend)


def _some(texts: Iterable[str]) -> Iterator[str]:
    """The texts, refusing an empty corpus before the trainer makes a useless vocabulary of it."""
    iterator = iter(texts)
    head = list(islice(iterator, 1))
    if not head:
        raise DataError("a tokenizer cannot be trained without text", subject="text")
    yield from head
    yield from iterator
