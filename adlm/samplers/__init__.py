"""Samplers, filters, orders and rules: values that say how a model writes. `named_samplers` has those with a name."""

from adlm.samplers.analytic import Analytic
from adlm.samplers.ancestral import Ancestral, Remasking
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.constraints import Choice, Digits, Pattern
from adlm.samplers.draft_and_verify import DraftAndVerify
from adlm.samplers.filters import Allowed, Banned, Filter, Forced, MinP, RepetitionPenalty, Temperature, TopK, TopP
from adlm.samplers.first_hitting import FirstHitting
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.named import NamedSampler, named_samplers, sampler_for
from adlm.samplers.ordered import Ordered
from adlm.samplers.orders import AnchorConfidence, AnyOrder, Confidence, LeastEntropy, Margin, Order
from adlm.samplers.paces import Above, EntropyBound, InSteps, Pace, PerStep
from adlm.samplers.remasking import (
    ByConfidence,
    Cap,
    FlowCorrector,
    ForwardBackward,
    Loop,
    Never,
    RemaskRule,
    Rescale,
)
from adlm.samplers.sampler import Sampler, Unmasking
from adlm.samplers.state import Sample, SamplerState, StepCallback, StepEvent

__all__ = [
    "Above",
    "Allowed",
    "Analytic",
    "Ancestral",
    "AnchorConfidence",
    "AnyOrder",
    "Banned",
    "Blocks",
    "ByConfidence",
    "Canvas",
    "Cap",
    "Choice",
    "Confidence",
    "Digits",
    "DraftAndVerify",
    "EntropyBound",
    "Filter",
    "FirstHitting",
    "FlowCorrector",
    "Forced",
    "ForwardBackward",
    "InSteps",
    "LeastEntropy",
    "LeftToRight",
    "Loop",
    "Margin",
    "MinP",
    "NamedSampler",
    "Never",
    "Order",
    "Ordered",
    "Pace",
    "Pattern",
    "PerStep",
    "RemaskRule",
    "Remasking",
    "RepetitionPenalty",
    "Rescale",
    "Sample",
    "Sampler",
    "SamplerState",
    "StepCallback",
    "StepEvent",
    "Temperature",
    "TopK",
    "TopP",
    "Unmasking",
    "named_samplers",
    "sampler_for",
]
