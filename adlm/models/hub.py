"""Models by name: the bundled one, folders, and the Hugging Face Hub, from which only what loading needs is fetched."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from adlm.errors import AdlmError, ModelError, first_line
from adlm.models.card import CARD, may_replace
from adlm.models.io import FILES, OPTIONAL_FILES, read_config
from adlm.models.transformers_files import GENERATION_CONFIG, REMOTE_CODE, TOKENIZER_CONFIG

BOX = "box"
_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def find_model(name: str | Path, *, revision: str | None = None, asked: str = "", **options: Any) -> Path:
    """The folder of a model, wherever one is expected: `box` (the bundled model), a folder, or owner/name on the Hub.

    A text of the form owner/name that is not a folder here is looked up on the Hub, or in its cache if the Hub cannot
    be reached. A `Path` is only ever a folder, and `./box` is the folder of that name.

    Args:
        revision: a branch, tag or commit, on the Hub.
        asked: the first part of error messages.
        options: of `huggingface_hub.snapshot_download`.
    """
    asked = asked or f"cannot find the model {str(name)!r}"
    folder = Path(__file__).parents[1] / BOX if name == BOX else Path(name)
    if folder.exists():
        if revision is not None:
            raise ModelError(
                f"{asked} at revision {revision!r}: only models on the Hub have revisions", subject="revision"
            )
        return folder
    subject = str(name)
    if isinstance(name, Path):
        fix = "name a folder that `adlm train` or `TextModel.save` wrote"
        raise ModelError(f"{asked}: no such folder", subject=subject)
    if not _NAME.fullmatch(name):
        fix = "name a folder that `adlm train` or `TextModel.save` wrote, owner/name, or box"
        raise ModelError(asked, "no folder of that name, and no name on the Hub (owner/name)", fix, subject=subject)
    with explained(asked + ", which is not a folder here", subject=subject):
        # The config first: whether the model is one of ours shows before gigabytes are on their way.
        config = Path(hf_hub_download(name, FILES[0], revision=revision, **options))
        read_config(config.parent, asked)
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*FILES, *OPTIONAL_FILES], **options))


def find_transformers_model(name: str, *, asked: str) -> Path:
    """The folder of a model as the library transformers saves them: `name` itself, or where its files are kept.

    Of a model on the Hub only JSON and safetensors are fetched.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    if not _NAME.fullmatch(name):
        found = "no folder of that name, and no name on the Hub (owner/name)"
        fix = "name a folder, or owner/name, such as openai-community/gpt2"
        raise ModelError(asked, found, fix, subject=name)
    with explained(asked + ", which is not a folder here", subject=name):
        patterns = ["config.json", "tokenizer.json", "model*.safetensors", "model.safetensors.index.json"]
        patterns += [*OPTIONAL_FILES, TOKENIZER_CONFIG]
        return Path(snapshot_download(name, allow_patterns=patterns))


def push_folder(folder: str | Path, name: str, *, private: bool | None = None) -> str:
    """Upload the model in a folder, or `box`, as it is; returns the address of the commit.

    Its card goes with it, with the training data and the figures that it states, unless one on the Hub was edited.
    """
    asked = f"cannot push the model in {folder} to {name!r}"
    folder = find_model(Path(folder) if folder != BOX else BOX, asked=asked)
    read_config(folder, asked)
    for file in FILES:
        if not (folder / file).is_file():
            raise ModelError(f"{asked}: it has no {file}", subject=file)
    with explained(asked, subject=name):
        api = HfApi()
        name = api.create_repo(name, private=private, exist_ok=True).repo_id
        files = [*FILES, *OPTIONAL_FILES, TOKENIZER_CONFIG, GENERATION_CONFIG, REMOTE_CODE]  # all but FILES if there
        files += [] if has_edited_card(name) else [CARD]
        return api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=files).commit_url


def has_edited_card(name: str, *, revision: str | None = None, token: str | bool | None = None) -> bool:
    """Whether the repository has a card that was written or edited by hand."""
    try:
        return not may_replace(Path(hf_hub_download(name, CARD, revision=revision, token=token)))
    except (EntryNotFoundError, RevisionNotFoundError):
        return False


@contextmanager
def explained(asked: str, *, subject: str) -> Iterator[None]:
    """The errors of the Hub's library as `ModelError`s."""

    def refused(found: str, fix: str, subject: str = subject) -> ModelError:
        return ModelError(asked, found, fix, subject=subject)

    login = "a private one needs `hf auth login`"
    try:
        yield
    except AdlmError:
        raise
    except GatedRepoError as error:
        fix = "ask for access on its page on the Hub, then log in by `hf auth login`"
        raise refused(f"the model is gated: {first_line(error)}", fix) from error
    except RepositoryNotFoundError as error:
        raise refused("no such model on the Hub", f"check owner/name; {login}") from error
    except RevisionNotFoundError as error:
        fix = "name a branch, a tag or a commit of it"
        raise refused("the model has no such revision", fix, "revision") from error
    except OfflineModeIsEnabled as error:
        raise refused(f"the Hub cannot be asked: {first_line(error)}", "unset HF_HUB_OFFLINE") from error
    except LocalEntryNotFoundError as error:
        # The library also says so if it was told to look nowhere else.
        found = f"the Hub cannot be reached, and the model is not in the cache: {first_line(error.__cause__ or error)}"
        raise refused(found, "check the network and HF_HUB_OFFLINE, or name a folder") from error
    except EntryNotFoundError as error:
        found = f"the repository has no {FILES[0]}: it is not a model of this package"
        fix = "check owner/name; `adlm convert` makes models of official checkpoints"
        raise refused(found, fix, FILES[0]) from error
    except HFValidationError as error:
        raise refused(first_line(error), "give owner/name") from error
    except HfHubHTTPError as error:
        raise refused(f"the Hub refused: {first_line(error)}", f"check the account; {login}") from error
    except Exception as error:  # httpx or requests, by the version of huggingface_hub, without a root in common
        found = f"the Hub gave {type(error).__name__}: {first_line(error)}"
        raise refused(found, "check the network, or name a folder") from error
