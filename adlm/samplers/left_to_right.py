"""One token after another, for autoregressive models."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

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
        blank = state.blank.cpu().numpy()  # what is written and where is known here, so no device is asked
        reading: NDArray[np.bool_] = np.asarray(blank.any(-1))  # [B]: rows in the cache
        rows = int(reading.sum())
        cache = state.network.cache(rows, length, t=torch.zeros(rows, device=state.tokens.device))
        read = 0
        for position in range(length):
            fresh = np.zeros_like(blank)
            if (writing := blank[:, position].nonzero()[0]).size:
                unfinished = np.asarray(blank[:, position:].any(-1))
                if (reading & ~unfinished).any():
                    cache.keep(state.to_device(unfinished[reading]))
                    reading = unfinished
                tokens = state.tokens[:, read:position]
                if not reading.all():
                    tokens = tokens[state.to_device(reading)]
                features = state.network.extend(tokens, cache)
                read = position
                state.network_calls += cache.rows
                state.anchor_calls += cache.rows if features.anchor is not None else 0
                final = features.final
                if len(writing) < len(final):
                    final = final[state.to_device(blank[reading, position])]
                fresh[writing, position] = True
                where = state.to_device(fresh)
                state.write(where, *state.draw(final, where))
                blank[writing, position] = False
                if state.stop is not None:
                    where = state.end_rows(where)
                    fresh = where.cpu().numpy()
                    blank &= ~fresh
            if state.on_step is not None:
                state.show(state.to_device(fresh), steps=length)
