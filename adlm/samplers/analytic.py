"""SEDD's analytic (Tweedie) step (arXiv 2310.16834), for models trained by score entropy."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.samplers.ancestral import OnGrid
from adlm.samplers.remasking import Never
from adlm.samplers.state import Prediction, SamplerState


@dataclass(frozen=True)
class Analytic(OnGrid):
    """Ancestral sampling whose probability to reveal is the network's own.

    The network gives unnormalised probabilities exp(a_v), a_v = logit_v - log(V - 1) (`ScoreEntropy`). Its scores
    exp(a_v) / (e^sigma - 1), moved back in time and multiplied by the transition as the paper says, reveal a blank
    with the chance (alpha_s - alpha_t) / (1 - alpha_t) times Z = sum_v exp(a_v), and then v with probability exp(a_v)
    / Z. Where Z is 1 that is `Ancestral`. Logits are needed at all blanks, since they decide which are revealed.
    """

    def fill(self, state: SamplerState) -> None:
        constant = math.log(state.network.vocabulary.size - 1)
        tokens, confidence = state.tokens.clone(), state.confidence.clone()
        total = torch.zeros_like(confidence)
        changed = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
        for step in range(self.steps):
            blank = state.blank
            t, s = 1 - step / self.steps, 1 - (step + 1) / self.steps
            # A row that has not changed keeps the tokens it offers: whether they are taken does not depend on them.
            new = blank & (changed if not state.network.time_conditioned else torch.ones_like(changed))[:, None]
            if bool(new.any()):
                tokens[new], measured = state.predict(new, t, step, measure=_total_and_confidence)
                measured = measured.to(total.dtype)
                total[new], confidence[new] = (measured[:, 0] - constant).exp(), measured[:, 1]
            probability = Never().step(t, s, self.schedule, confidence).reveal
            last = step == self.steps - 1
            fresh = blank & ((state.uniform("reveal", step) < probability * total) | last)
            state.write(fresh, tokens[fresh], confidence[fresh])
            changed = fresh.any(-1)
            state.show(fresh, steps=self.steps)


def _total_and_confidence(prediction: Prediction) -> Tensor:
    return torch.stack([prediction.raw.logsumexp(-1), prediction.confidence], -1)
