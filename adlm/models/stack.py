"""The one transformer stack from which every model is built: [B, L, D] in, [B, L, D] out."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adlm.errors import ConfigError
from adlm.models.layers import Block, Norm, Rotary


@dataclass(frozen=True)
class StackConfig:
    """Shape of a stack.

    Args:
        convolution: size of the short convolution in each block; 0 is none, as published.
        condition: width of the time conditioning; 0 leaves adaptive norms out.
    """

    width: int = 128
    heads: int = 4
    layers: int = 6
    mlp_ratio: int = 4
    dropout: float = 0.0
    causal: bool = False
    convolution: int = 0
    condition: int = 0

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"asked for width {self.width} with {self.heads} heads",
                "rotary positions need an even number of channels a head",
                f"choose a multiple of {2 * self.heads}",
            )

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
            )
            for _ in range(config.layers)
        )
        self.norm = Norm(config.width)
        self.modulation = nn.Linear(config.condition, 2 * config.width) if config.condition else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        return self.finish(self.residual(x, condition), condition)

    def residual(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """The residual stream after the last block, for a further stack to go on with."""
        cos, sin = self.rotary(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x, cos, sin, condition)
        return x

    def finish(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """The last norm: from the residual stream to what a head reads."""
        h: Tensor = self.norm(x)
        if self.modulation is None or condition is None:
            return h
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        return h * (1 + scale) + shift
