"""The studies by name."""

from adlm.errors import UnknownName
from adlm.experiments.anchoring import Anchoring
from adlm.experiments.anchors import Anchors
from adlm.experiments.domains import Domains
from adlm.experiments.efficiency import Efficiency
from adlm.experiments.generation import Generation
from adlm.experiments.reasoning import Reasoning
from adlm.experiments.sample_complexity import SampleComplexity
from adlm.experiments.study import Study

_ALL = (Anchoring, Generation, Reasoning, Domains, Anchors, Efficiency, SampleComplexity)
STUDIES: dict[str, type[Study]] = {study.name: study for study in _ALL}


def study_of(name: str, *, scale: str = "nano", seeds: int = 3) -> Study:
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    return STUDIES[name](scale=scale, seeds=seeds)
