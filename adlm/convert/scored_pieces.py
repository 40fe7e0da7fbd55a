"""The tokenizer of llama2.c, a file of pieces with scores, as a tokenizer of this package.

Text is split into characters, those without a piece into bytes, and the two neighbors whose joint piece has the
highest score are joined until none has one. A space is put before every text, and taken away when it is decoded.

The file: int32 length of the longest piece, then for each id float32 score, int32 length, UTF-8. Ids 0 to 2 are
<unk>, <s> and </s>, 3 to 258 the bytes; these stand there as the characters of their numbers, which later pieces may
have too, so bytes are known by their place.
"""

import struct
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from adlm.data.tokenizer import Roles, Tokenizer
from adlm.errors import ModelError

SPACE = "\u2581"
BEGIN = 1  # which also ends a document
_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_FIRST = len(_SPECIAL) + len(_BYTES)


def read_scored_pieces(path: Path, size: int, *, asked: str) -> Tokenizer:
    """The tokenizer in a `tokenizer.bin` of `size` pieces; its vocabulary has a mask after them."""
    scores, pieces = _contents(path, size, asked)
    names = [*_SPECIAL, *_BYTES, *(piece.replace(" ", SPACE) for piece in pieces[_FIRST:])]
    vocabulary = {name: index for index, name in enumerate(names)}
    if size < _FIRST or len(vocabulary) != size:
        raise ModelError(f"{asked}: {path.name} has pieces that occur twice, or no bytes", subject=path.name)
    merges = [
        (name[:k], name[k:])
        for name in sorted(names[_FIRST:], key=lambda name: -scores[vocabulary[name]])
        for k in range(1, len(name))
        if name[:k] in vocabulary and name[k:] in vocabulary
    ]
    backend = Backend(models.BPE(vocabulary, merges, unk_token=_SPECIAL[0], fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIAL])
    return Tokenizer(backend, Roles(size + 1, mask_id=size, eos_id=BEGIN, bos_id=BEGIN, pad_id=BEGIN))


def _contents(path: Path, size: int, asked: str) -> tuple[list[float], list[str]]:
    """The scores and the pieces of a file."""
    data, at = path.read_bytes(), 4
    scores, pieces = list[float](), list[str]()
    try:
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            if length < 0 or at + 8 + length > len(data):
                raise ValueError("it is cut short")
            scores.append(score)
            pieces.append(data[at + 8 : at + 8 + length].decode())
            at += 8 + length
    except (struct.error, ValueError) as error:
        raise ModelError(f"{asked}: {path.name} cannot be read: {error}", subject=path.name) from error
    if len(pieces) != size:
        found = f"{path.name} has {len(pieces):,} pieces, the model {size:,} tokens"
        raise ModelError(f"{asked}: {found}", subject=path.name)
    return scores, pieces
