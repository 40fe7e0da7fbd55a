"""One token after another, for autoregressive models."""

from dataclasses import dataclass

import torch

from adlm.errors import ConfigError
from adlm.samplers.network import Network
from adlm.samplers.sampler import Needs, Sampler
from adlm.samplers.state import SamplerState


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """Writes one token after another, as autoregressive models do.

    Tokens to the right of a blank are kept and not seen when it is filled.

    Each position goes through the network once: its keys and values are cached. A row without blanks leaves the
    batch, as does one that has ended.
    """

    @property
    def needs(self) -> Needs:
        return "causal"

    def suited(self, network: Network) -> tuple[Sampler, Network]:
        shifted = network.shifted and not network.causal
        return self, network.in_blocks(1) if shifted else network

    def setup(self, state: SamplerState) -> None:
        if not state.network.causal:
            raise ConfigError(
                "LeftToRight cannot sample from a model that sees both sides",
                fix="use Ancestral",
                subject="LeftToRight",
            )
        super().setup(state)

    def fill(self, state: SamplerState) -> None:
        length = state.tokens.shape[1]
        positions = torch.arange(length, device=state.tokens.device)
        reading = state.blank.any(-1)  # [B] bool: rows in the cache
        rows = int(reading.sum())
        cache = state.network.cache(rows, length, t=torch.zeros(rows, device=reading.device))
        read = 0
        for position in range(length):
            blank = state.blank
            fresh = blank & (positions == position)
            if bool(fresh.any()):
                unfinished = blank.any(-1)
                if bool((reading & ~unfinished).any()):
                    cache.keep(unfinished[reading])
                    reading = unfinished
                features = state.network.extend(state.tokens[reading, read:position], cache)
                read = position
                state.network_calls += cache.rows
                state.anchor_calls += cache.rows if features.anchor is not None else 0
                state.write(fresh, *state.draw(features.final[fresh[reading, position]], fresh))
                fresh = state.end_rows(fresh)
            state.show(fresh, steps=length)
