"""A network, its config and its tokenizer: saved as a folder, loaded from one, and shared on the Hugging Face Hub."""

from pathlib import Path
from typing import Any, Final, TypeVar

from huggingface_hub import HfApi, ModelCard, ModelHubMixin

from adlm import registry
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError
from adlm.models.card import CARD, Facts, card_text
from adlm.models.hub import explained, find_model, has_edited_card
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.language_model import LanguageModel

_Model = TypeVar("_Model", bound="HubModel")


class HubModel(ModelHubMixin, library_name="adlm"):
    """A model in memory, with what a folder of it holds."""

    def __init__(self, network: LanguageModel, config: ModelConfig, tokenizer: Tokenizer) -> None:
        self.network: Final = network
        self.config: Final = config
        self.tokenizer: Final = tokenizer

    def save(self, folder: str | Path, *, facts: Facts | None = None) -> None:
        """Write a folder that `adlm.load` reads, replacing the model in it if there is one.

        Args:
            facts: what its card says beyond what the network shows: license, training data, figures.
        """
        save_model(Path(folder), self.network, self.config, self.tokenizer, facts=facts)

    # The mixin's own versions of the next two take config.json into their hands: one removes it before anything is
    # written, the other reads it loosely. What is left of them is what belongs to the Hub.
    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Save as `save` does, with `Facts` as `model_card_kwargs`, and upload to the Hub if asked."""
        if config not in (None, self.config):
            raise ConfigError("a model is saved with its own config", fix="leave config out", subject="config")
        self.save(save_directory, facts=Facts(**(model_card_kwargs or {})))
        if not push_to_hub:
            return None
        name = repo_id or Path(save_directory).name
        return self.push_to_hub(name, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override] # the mixin's takes any options
        cls: type[_Model],
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> _Model:
        """Load a model as `adlm.load` does, with the Hub's options."""
        asked = f"cannot load the model {str(pretrained_model_name_or_path)!r}"
        folder = find_model(
            pretrained_model_name_or_path,
            revision=revision,
            asked=asked + (f" at {revision!r}" if revision else ""),
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
        model = cls(*load_model(folder, asked=asked))
        if Path(pretrained_model_name_or_path).is_dir():  # never for a model of the Hub
            registry.offer_imports((model.config.run or {}).get("imports"), folder)
        return model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model; returns the address of the commit. A card that was edited on the Hub stays.

        Args:
            options: of `huggingface_hub.ModelHubMixin.push_to_hub`: private, token, branch, commit_message,
                model_card_kwargs (see `Facts`) and others.
        """
        token, private, branch = options.get("token"), options.get("private"), options.get("branch")
        with explained(f"cannot push a model to {repo_id!r}", subject=repo_id):
            repo_id = HfApi(token=token).create_repo(repo_id, private=private, exist_ok=True).repo_id
            if has_edited_card(repo_id, revision=branch, token=token):
                ignored = options.get("ignore_patterns") or []
                options["ignore_patterns"] = [*([ignored] if isinstance(ignored, str) else ignored), CARD]
            return super().push_to_hub(repo_id, **options)

    def generate_model_card(self, **facts: Any) -> ModelCard:
        """The card that `save` writes."""
        config = self.config
        return ModelCard(card_text(self.network, config.network, config.vocabulary, config.packing, Facts(**facts)))
