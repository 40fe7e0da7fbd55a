"""Text into rows of tokens: sources, tokenizers, packing, prepared shards, and the loader that reads them.

Names are imported when first used: only the loader needs torch.
"""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

if TYPE_CHECKING:
    from adlm.data.anchored_process import AnchoredProcess
    from adlm.data.catalog import open_source
    from adlm.data.config import Corpus
    from adlm.data.corpus_table import CorpusTable
    from adlm.data.files import TextFiles
    from adlm.data.hub import HubDataset
    from adlm.data.loader import Loader, LoaderConfig
    from adlm.data.packing import Packing, Padded, Wrapped
    from adlm.data.prompts import Prompts
    from adlm.data.shards import Shards
    from adlm.data.source import Piece, Source
    from adlm.data.synthetic import Synthetic
    from adlm.data.table import DataConfig, Prepared, Table
    from adlm.data.tokenizer import Roles, Tokenizer, characters, load_tokenizer, train_bpe, train_words

__all__ = [
    "AnchoredProcess",
    "Corpus",
    "CorpusTable",
    "DataConfig",
    "HubDataset",
    "Loader",
    "LoaderConfig",
    "Packing",
    "Padded",
    "Piece",
    "Prepared",
    "Prompts",
    "Roles",
    "Shards",
    "Source",
    "Synthetic",
    "Table",
    "TextFiles",
    "Tokenizer",
    "Wrapped",
    "characters",
    "load_tokenizer",
    "open_source",
    "train_bpe",
    "train_words",
]

__getattr__ = lazy_names(
    __name__,
    {
        "anchored_process": ("AnchoredProcess",),
        "catalog": ("open_source",),
        "config": ("Corpus",),
        "corpus_table": ("CorpusTable",),
        "files": ("TextFiles",),
        "hub": ("HubDataset",),
        "loader": ("Loader", "LoaderConfig"),
        "packing": ("Packing", "Padded", "Wrapped"),
        "prompts": ("Prompts",),
        "shards": ("Shards",),
        "source": ("Piece", "Source"),
        "synthetic": ("Synthetic",),
        "table": ("DataConfig", "Prepared", "Table"),
        "tokenizer": ("Roles", "Tokenizer", "characters", "load_tokenizer", "train_bpe", "train_words"),
    },
)
