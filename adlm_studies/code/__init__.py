"""Code benchmarks: HumanEval and MBPP, and a sandbox for the programs that models write."""

from adlm_studies.code.benchmarks import BENCHMARKS, CodeProblem, pass_at, read_problems, read_solutions
from adlm_studies.code.evaluate import BenchmarkPart, CodeEvaluation
from adlm_studies.code.sandbox import ProgramLimits, ProgramOutcome, run

__all__ = [
    "BENCHMARKS",
    "BenchmarkPart",
    "CodeEvaluation",
    "CodeProblem",
    "ProgramLimits",
    "ProgramOutcome",
    "pass_at",
    "read_problems",
    "read_solutions",
    "run",
]
