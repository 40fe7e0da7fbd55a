"""The classes of this package that stored configurations can name; `adlm` finds them by the entry point `adlm.plugins`."""

from adlm import registry

CLASSES = {
    "data": {
        "Diffused": "adlm_studies.reasoning.diffusion:Diffused",
        "Reasoned": "adlm_studies.reasoning.rows:Reasoned",
    },
    "init": {"WithMarks": "adlm_studies.reasoning.vocabulary:WithMarks"},
    "objective": {
        "ReferenceAnelbo": "adlm_studies.experiments.reference:ReferenceAnelbo",
        "ThoughtCrossEntropy": "adlm_studies.reasoning.objective:ThoughtCrossEntropy",
    },
    "sampler": {"AnchorsFirst": "adlm_studies.reasoning.diffusion:AnchorsFirst"},
    "reasoning_method": {
        "Anchored": "adlm_studies.reasoning.methods:Anchored",
        "Chain": "adlm_studies.reasoning.methods:Chain",
        "Coconut": "adlm_studies.reasoning.methods:Coconut",
        "Implicit": "adlm_studies.reasoning.methods:Implicit",
        "NoChain": "adlm_studies.reasoning.methods:NoChain",
        "Pause": "adlm_studies.reasoning.methods:Pause",
    },
    "reasoning_task": {
        "Arithmetic": "adlm_studies.reasoning.small_tasks:Arithmetic",
        "Gsm8k": "adlm_studies.reasoning.gsm8k:Gsm8k",
        "Gsm8kEquations": "adlm_studies.reasoning.gsm8k:Gsm8kEquations",
        "LetterGraph": "adlm_studies.reasoning.small_tasks:LetterGraph",
        "ProntoQA": "adlm_studies.reasoning.prontoqa:ProntoQA",
        "ProsQA": "adlm_studies.reasoning.prosqa:ProsQA",
    },
    "study": {
        "Anchoring": "adlm_studies.experiments.anchoring:Anchoring",
        "Anchors": "adlm_studies.experiments.anchors:Anchors",
        "Demo": "adlm_studies.experiments.demo:Demo",
        "Domains": "adlm_studies.experiments.domains:Domains",
        "Efficiency": "adlm_studies.experiments.efficiency:Efficiency",
        "Generation": "adlm_studies.experiments.generation:Generation",
        "Reasoning": "adlm_studies.experiments.reasoning:Reasoning",
        "SampleComplexity": "adlm_studies.experiments.sample_complexity:SampleComplexity",
    },
}
BASES = {
    "reasoning_method": "adlm_studies.reasoning.methods:Method",
    "reasoning_task": "adlm_studies.reasoning.problem:Task",
    "study": "adlm_studies.experiments.study:Study",
}

for _group, _classes in CLASSES.items():
    registry.add(_group, _classes, base=BASES.get(_group, ""))
