"""SEDD's analytic (Tweedie) step (arXiv 2310.16834), for models trained by score entropy."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adlm.samplers.ancestral import OnGrid
from adlm.samplers.grid import chunks, grid, times
from adlm.samplers.remasking import Never
from adlm.samplers.state import Prediction, SamplerState


@dataclass(frozen=True)
class Analytic(OnGrid):
    """Ancestral sampling whose probability to reveal is the network's own.

    The network gives unnormalized probabilities exp(a_v), a_v = logit_v - log(V - 1) (`ScoreEntropy`). Its scores
    exp(a_v) / (e^sigma - 1), moved back in time and multiplied by the transition as the paper says, reveal a blank
    with probability (alpha_s - alpha_t) / (1 - alpha_t) times Z = sum_v exp(a_v), and then v with probability exp(a_v)
    / Z. Where Z is 1 that is `Ancestral`. Logits are needed at all blanks, since they decide which are revealed.
    """

    def fill(self, state: SamplerState) -> None:
        constant = math.log(state.network.vocabulary.size - 1)
        tokens, confidence = state.tokens.clone(), state.confidence.clone()
        total = np.zeros(state.tokens.shape, dtype=np.float32)
        probability = grid(self.steps, self.schedule, Never()).reveal
        stale = torch.ones(len(tokens), 1, dtype=torch.bool, device=tokens.device)
        for steps in chunks(self.steps, total.size):
            u = state.row_noise.uniforms("reveal", steps)
            step = steps.start
            while step < steps.stop:
                # A row that has not changed keeps the tokens it offers: whether they are taken does not depend on them.
                blank = state.blank
                new = blank & (stale | state.network.time_conditioned)
                if bool(new.any()):
                    t = times(step, self.steps)[0]
                    tokens[new], measured = state.predict(new, t, step, measure=_total_and_confidence)
                    measured = measured.to(confidence.dtype)
                    total[new.cpu().numpy()] = (measured[:, 0] - constant).exp().cpu().numpy()
                    confidence[new] = measured[:, 1]
                end = step + 1 if state.network.time_conditioned else steps.stop
                reveal = probability[step:end, None, None] * total
                if end == self.steps:
                    reveal[-1] = 1  # the last step reveals all that is left
                taken = (u[step - steps.start : end - steps.start] < reveal) & blank.cpu().numpy()
                # Up to the first step at which something is revealed, nothing changes.
                hit = taken.any((1, 2))
                count = int(hit.argmax()) if hit.any() else len(hit)
                self._show_surplus(state, count)
                step += count
                if step < end:
                    fresh = state.to_device(taken[count])
                    state.write(fresh, tokens[fresh], confidence[fresh])
                    state.show(fresh, steps=self.steps)
                    stale = fresh.any(-1, keepdim=True)
                    step += 1


def _total_and_confidence(prediction: Prediction) -> Tensor:
    return torch.stack([prediction.raw.logsumexp(-1), prediction.confidence], -1)
