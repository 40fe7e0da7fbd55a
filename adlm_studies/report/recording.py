"""A text as it appears, with what the model expected at every blank: a recording for the page's player.

The sampler runs as it always does and is only watched. What each stage expects is computed afterwards, from the states
that were kept, so a recording is of the same text that `generate` writes for the seed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adlm.errors import OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.pieces import Pieces, anchor_rule, anchors_by
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import SLICE, StepEvent
from adlm.text_model import TextModel
from adlm_studies.report.sections import Frame, Player

_NOTICEABLE = 0.02  # a smaller change of the likeliest token's probability is not worth a line in the file

Ranking = Sequence[tuple[str, float]]


def record_generation(
    model: TextModel,
    *,
    title: str,
    prompt: str = "",
    sampler: Sampler | str | None = None,
    seed: int = 0,
    predictions: int = 3,
    frames: int = 64,
    **options: object,
) -> Player:
    """Have the model write a text, and keep how it did.

    Args:
        predictions: how many of its likeliest tokens each stage shows at a blank, before any filter of the sampler.
        frames: at most this many, the empty canvas among them; steps in between are merged.
        options: of `TextModel.generate`.
    """
    if frames < 2:
        raise OutOfRange("frames", frames, "at least 2")
    if predictions < 0:
        raise OutOfRange("predictions", predictions, "at least 0")
    watched = _Watched(model.tokenizer.mask_id)
    model.generate(prompt, sampler=sampler, seed=seed, on_step=watched, **options)  # type: ignore[arg-type]
    states = _merged(watched.states, frames)
    if not states:
        return Player(title, "The prompt left nothing to write.")
    special = _special(model)
    length = _length(model, states)
    states = [state[:length] for state in states]
    final = states[-1][None]
    anchors = anchors_by(anchor_rule(model.config), final, (final != watched.mask_id) & ~torch.isin(final, special))
    writer = _Writer(model, set(special.tolist()), predictions)
    kind = sampler if isinstance(sampler, str) else type(sampler or model.sampler()).__name__
    steps = f"{watched.steps:,} step{'s' * (watched.steps != 1)}"
    return Player(
        title,
        f"{kind}, seed {seed}: {steps} in {len(states)} frames.",
        name=str((model.config.run or {}).get("name", "")),
        length=length,
        given=tuple((i, writer.text(t)) for i, t in enumerate(states[0].tolist()) if t != watched.mask_id),
        frames=tuple(writer.frames(states)),
        anchors=tuple(anchors[0].nonzero()[:, 0].tolist()),
    )


class _Watched:
    """The states of the first row: before the first step, and after each that changed something."""

    def __init__(self, mask_id: int) -> None:
        self.mask_id, self.states, self.steps = mask_id, list[Tensor](), 0

    def __call__(self, view: StepEvent) -> None:
        tokens = view.tokens[0].cpu().clone()
        if not self.states:
            self.states.append(tokens.masked_fill(view.fresh[0].cpu(), self.mask_id))
        if not torch.equal(tokens, self.states[-1]):
            self.states.append(tokens)
        self.steps += 1


def _merged(states: list[Tensor], most: int) -> list[Tensor]:
    """At most so many, evenly, the first and the last among them."""
    if len(states) <= most:
        return states
    return [states[round(i * (len(states) - 1) / (most - 1))] for i in range(most)]


def _special(model: TextModel) -> Tensor:
    roles = model.tokenizer.roles
    return torch.tensor([roles.eos_id, roles.bos_id, roles.pad_id])


def _length(model: TextModel, states: list[Tensor]) -> int:
    """Up to the last place that was ever written. From left to right, what stands behind an end token is filled up
    and not written."""
    mask_id = model.tokenizer.mask_id
    written = torch.stack(states).ne(mask_id).any(0).nonzero()
    length = int(written.max()) + 1 if len(written) else 0
    if model.network.causal:
        ends = ((states[-1] == model.tokenizer.roles.eos_id) & (states[0] == mask_id)).nonzero()
        length = min([length, *(int(end) + 1 for end in ends)])
    return length


class _Writer:
    """Turns states into frames."""

    def __init__(self, model: TextModel, special: set[int], predictions: int) -> None:
        self.model, self.special, self.predictions = model, special, predictions
        self.pieces, self.mask_id = Pieces(model.tokenizer), model.tokenizer.mask_id

    def text(self, token: int) -> str:
        return "·" if token in self.special else self.pieces[token]

    def frames(self, states: list[Tensor]) -> list[Frame]:
        """The first has what was expected of the empty canvas."""
        found, before = list[Frame](), states[0]
        said: dict[int, tuple[Ranking, Ranking]] = {}
        for state in states:
            changed = (state != before).nonzero()[:, 0].tolist()
            tokens = [(i, None if state[i] == self.mask_id else self.text(int(state[i]))) for i in changed]
            fresh = {i: now for i, now in self._predictions(state).items() if i not in said or _differ(said[i], now)}
            said.update(fresh)
            found.append(Frame(tuple(tokens), tuple((i, *rankings) for i, rankings in fresh.items())))
            before = state
        return found

    @torch.no_grad()
    def _predictions(self, state: Tensor) -> dict[int, tuple[Ranking, Ranking]]:
        """By position: the anchor stage's ranking, empty where there is no such stage, and the final one's."""
        network = self.model.network
        blank = (state == self.mask_id).nonzero()[:, 0]
        if not self.predictions or not len(blank):
            return {}
        # A row longer than those of training is seen as a sampler in blocks sees it, around its first blank.
        size = self.model.config.packing.length
        start = max(0, min(int(blank[0]) - size // 2, len(state) - size))
        if network.causal:
            blank = blank[:1]  # further on, it would read blanks as text
        blank = blank[blank < start + size]
        device = next(network.parameters()).device
        tokens = state[None, start : start + size].to(device)
        fraction = (state == self.mask_id).float().mean().clamp(1e-3, 1.0)
        with network.inference_weights():
            features = network.features(tokens, fraction[None].to(device) if network.time_conditioned else None)
            positions = (blank - start).to(device)
            final = self._rankings(network.logits, features.final[0, positions])
            none: list[Ranking] = [()] * len(blank)
            anchor = none if features.anchor is None else self._anchor_rankings(network, features.anchor[0, positions])
        return {i: (a, f) for i, a, f in zip(blank.tolist(), anchor, final, strict=True)}

    def _anchor_rankings(self, network: LanguageModel, anchor: Tensor) -> list[Ranking]:
        mask = torch.tensor([self.mask_id], device=anchor.device)
        return self._rankings(lambda part: network.anchor_logits(part).index_fill(-1, mask, -torch.inf), anchor)

    def _rankings(self, logits: Callable[[Tensor], Tensor], features: Tensor) -> list[Ranking]:
        found: list[Ranking] = []
        vocabulary = self.model.config.vocabulary.size
        for part in features.split(max(1, SLICE // vocabulary)):
            top = logits(part).softmax(-1).topk(min(self.predictions, vocabulary - 1))
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                found.append(tuple((self.text(i), round(p, 3)) for i, p in zip(ids, values, strict=True)))
        return found


def _differ(before: tuple[Ranking, Ranking], now: tuple[Ranking, Ranking]) -> bool:
    """Noticeably: in the likeliest token of a stage, or in its probability."""
    return any(
        a[:1] != b[:1] and (a[0][0] != b[0][0] or abs(a[0][1] - b[0][1]) > _NOTICEABLE)
        for a, b in zip(before, now, strict=True)
    )
