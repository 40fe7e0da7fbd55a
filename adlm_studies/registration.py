"""The classes of this package that stored configurations can name, found by the entry point `adlm.plugins`."""

from adlm import registry

# What the steps of studies do, by module: stored steps are read back, to be compared with today's.
_WORKS = {
    "blocks": ("TrainFromLeftToRight",),
    "domains": ("TrainSharedTokenizer", "TrainWithSharedTokenizer"),
    "generation": ("GenerateTexts", "MeasureRealText"),
    "paired_rows": ("TrainAndScoreRows", "TrainBestOfSearch", "TrainWithCountedRule"),
    "probing": ("TrainAndProbe", "TrainWithRuleFromData"),
    "reasoning": ("SolveBySize", "TrainReasoner"),
    "sample_complexity": ("FillTables", "TrainOnProcess"),
    "samples": ("RecordSample",),
    "timing": ("TimeSampling", "TimeTraining"),
    "training": ("TrainAndScore",),
    "writing_speed": ("TimeWriting",),
}
CLASSES = {
    "data": {
        "DiffusionReasoningData": "adlm_studies.reasoning.diffusion:DiffusionReasoningData",
        "ReasoningData": "adlm_studies.reasoning.data:ReasoningData",
    },
    "init": {"FinetuneWithNewTokens": "adlm_studies.reasoning.vocabulary:FinetuneWithNewTokens"},
    "objective": {
        "ReferenceAnelbo": "adlm_studies.reference:ReferenceAnelbo",
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
    "rule_from_data": {
        name: f"adlm_studies.experiments.probing:{name}"
        for name in ("RareTokens", "HighTfIdf", "RandomTokens", "ContentTokens")
    },
    "study_work": {
        name: f"adlm_studies.experiments.{module}:{name}" for module, names in _WORKS.items() for name in names
    },
    "study": {
        "Anchoring": "adlm_studies.experiments.anchoring:Anchoring",
        "Anchoring2": "adlm_studies.experiments.anchoring_2:Anchoring2",
        "Anchors": "adlm_studies.experiments.anchors:Anchors",
        "BlockSizes": "adlm_studies.experiments.blocks:BlockSizes",
        "Cures": "adlm_studies.experiments.cures:Cures",
        "Demo": "adlm_studies.experiments.demo:Demo",
        "Domains": "adlm_studies.experiments.domains:Domains",
        "Efficiency": "adlm_studies.experiments.efficiency:Efficiency",
        "Generation": "adlm_studies.experiments.generation:Generation",
        "Reasoning": "adlm_studies.experiments.reasoning:Reasoning",
        "SampleComplexity": "adlm_studies.experiments.sample_complexity:SampleComplexity",
    },
}
BASES = {
    "reasoning_method": "adlm_studies.reasoning.methods:ReasoningMethod",
    "reasoning_task": "adlm_studies.reasoning.problem:Task",
    "rule_from_data": "adlm_studies.experiments.probing:RuleFromData",
    "study": "adlm_studies.experiments.study:Study",
    "study_work": "adlm_studies.experiments.study:StudyWork",
}

# The names that classes had in version 0.1, whose saved models still load.
OLD = {
    "data": {"Diffused": "DiffusionReasoningData", "Reasoned": "ReasoningData"},
    "init": {"WithMarks": "FinetuneWithNewTokens"},
    "objective": {"NaiveAnelbo": "ReferenceAnelbo"},
}

for _group, _classes in CLASSES.items():
    registry.add(_group, _classes, base=BASES.get(_group, ""), old=OLD.get(_group))
