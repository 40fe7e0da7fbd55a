"""The one transformer stack from which every model is built: [B, L, D] in, [B, L, D] out."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adlm.errors import ConfigError
from adlm.models.layers import Block, Norm, Rotary, TimeEmbedding


@dataclass(frozen=True)
class StackConfig:
    """Shape of a stack.

    Args:
        convolution: size of the short convolution in each block; 0 is none, as published.
        condition: width of the conditioning of adaptive norms, 128 as published; 0 leaves them out.
        timed: the conditioning follows the time; otherwise, as published, it is that of t = 0 for all t.
        query_key_norm: queries and keys of unit size, which small runs learn faster with; not as published.
    """

    width: int = 128
    heads: int = 4
    layers: int = 6
    mlp_ratio: int = 4
    dropout: float = 0.0
    causal: bool = False
    convolution: int = 0
    condition: int = 0
    timed: bool = False
    query_key_norm: bool = False

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"asked for width {self.width} with {self.heads} heads",
                "rotary positions need an even number of channels a head",
                f"choose a multiple of {2 * self.heads}",
            )
        if self.timed and not self.condition:
            raise ConfigError("asked for a timed stack", "condition is 0", "give the conditioning a width, such as 128")

    def build(self) -> "Stack":
        return Stack(self)


class Stack(nn.Module):
    """Blocks and a last norm."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.rotary = Rotary(config.width // config.heads)
        self.blocks = nn.ModuleList(
            Block(
                config.width,
                config.heads,
                mlp_ratio=config.mlp_ratio,
                dropout=config.dropout,
                causal=config.causal,
                convolution=config.convolution,
                condition=config.condition,
                query_key_norm=config.query_key_norm,
            )
            for _ in range(config.layers)
        )
        self.norm = Norm(config.width)
        self.time = TimeEmbedding(config.condition) if config.condition else None
        self.modulation = nn.Linear(config.condition, 2 * config.width) if config.condition else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, sigma: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, L, D] -> the residual stream after the last block, and what a head reads: that, normalised.

        Args:
            sigma: -log alpha_t [B], for timed stacks.
        """
        condition = self._condition(sigma)
        cos, sin = self.rotary(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x, cos, sin, condition)
        h: Tensor = self.norm(x)
        if self.modulation is not None:
            shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
            h = h * (1 + scale) + shift
        return x, h

    def _condition(self, sigma: Tensor | None) -> Tensor | None:
        """[B, C], or [1, C] where it is the same for all rows."""
        if self.time is None:
            return None
        if not self.config.timed:
            sigma = torch.zeros(1, device=self.norm.weight.device)
        if sigma is None:
            raise ConfigError("asked a timed model for features", "no time given", "pass t")
        return self.time(sigma).to(self.norm.weight.dtype)
