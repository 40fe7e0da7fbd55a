"""What transformers keeps of a model in its `config.json`, and the model's own config made of it."""

from typing import Any

from adlm.config import from_json, to_json
from adlm.data.tokenizer import Roles
from adlm.errors import ConfigError
from adlm.hf import modeling_adlm
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary


class AdlmConfig(modeling_adlm.AdlmConfig):
    """As in the file that goes along with the weights, and able to build this package's own network."""

    def __init__(self, **kwargs: Any) -> None:
        # The library writes another one for classes that have none themselves.
        super().__init__(**kwargs)

    @classmethod
    def of(cls, config: ModelConfig, roles: Roles) -> "AdlmConfig":
        """Refuses networks that the file for others does not have."""
        if not config.network.stacks:
            raise ConfigError(
                f"asked for a {type(config.network).__name__} as a model for the library transformers",
                "its network is one of that library already",
                "use that library's own class for it, or a model with stacks of this package",
            )
        data = to_json(config)
        made = cls(
            network=data["network"],
            rows=data["packing"],
            sampling=data["sampling"],
            run=data["run"],
            vocab_size=config.vocabulary.size,
            mask_token_id=config.vocabulary.mask_id,
            eos_token_id=roles.eos_id,
            pad_token_id=roles.pad_id,
            bos_token_id=roles.bos_id,
        )
        if made.causal:
            made.bos_token_id = config.vocabulary.mask_id  # with which rows begin
        return made

    def model_config(self) -> ModelConfig:
        """What this package builds the network from."""
        vocabulary = Vocabulary(self.vocab_size, self.mask_token_id)
        data = {
            "network": self.network,
            "packing": self.rows,
            "sampling": self.sampling,
            "run": getattr(self, "run", None),
        }
        return from_json(ModelConfig, {**data, "vocabulary": to_json(vocabulary)}, where="config.json")
