"""The studies by name."""

from dataclasses import replace

from adlm.errors import UnknownName
from adlm_studies.experiments.anchoring import Anchoring
from adlm_studies.experiments.anchoring_2 import Anchoring2
from adlm_studies.experiments.anchors import Anchors
from adlm_studies.experiments.blocks import BlockSizes
from adlm_studies.experiments.cures import Cures
from adlm_studies.experiments.domains import Domains
from adlm_studies.experiments.efficiency import Efficiency
from adlm_studies.experiments.generation import Generation
from adlm_studies.experiments.reasoning import Reasoning
from adlm_studies.experiments.sample_complexity import SampleComplexity
from adlm_studies.experiments.study import Study

_ALL = (
    *(Anchoring, Anchoring2, Generation, Reasoning, Domains, Anchors, Efficiency),
    *(SampleComplexity, BlockSizes, Cures),
)
STUDIES: dict[str, type[Study]] = {study.name: study for study in _ALL}


def find_study(name: str, *, scale: str | None = None, seeds: int | None = None) -> Study:
    """A study by its name; scale and seeds are the study's own by default."""
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    study = STUDIES[name]()
    return replace(study, scale=study.scale if scale is None else scale, seeds=study.seeds if seeds is None else seeds)
