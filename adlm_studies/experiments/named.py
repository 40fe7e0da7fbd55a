"""The studies by name."""

from adlm.errors import UnknownName
from adlm_studies.experiments.anchoring import Anchoring
from adlm_studies.experiments.anchors import Anchors
from adlm_studies.experiments.blocks import BlockSizes
from adlm_studies.experiments.cures import Cures
from adlm_studies.experiments.domains import Domains
from adlm_studies.experiments.efficiency import Efficiency
from adlm_studies.experiments.generation import Generation
from adlm_studies.experiments.reasoning import Reasoning
from adlm_studies.experiments.sample_complexity import SampleComplexity
from adlm_studies.experiments.study import Study

_ALL = (Anchoring, Generation, Reasoning, Domains, Anchors, Efficiency, SampleComplexity, BlockSizes, Cures)
STUDIES: dict[str, type[Study]] = {study.name: study for study in _ALL}


def find_study(name: str, *, scale: str = "nano", seeds: int = 3) -> Study:
    """A study by its name, at a scale."""
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    return STUDIES[name](scale=scale, seeds=seeds)
