"""`adlm reason show`: one problem, and what a model makes of it."""

from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from adlm.cli.progress import console
from adlm.errors import OutOfRange
from adlm.pieces import harmless
from adlm_studies.reasoning.decode import SolvedProblem, ThoughtPrediction
from adlm_studies.reasoning.evaluate import load_reasoner
from adlm_studies.reasoning.solve import answer_limit, solve


def command(
    run: Annotated[str, tyro.conf.Positional],
    /,
    *,
    number: int = 0,
    split: str = "test",
    data: str | None = None,
    plain: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: str = "auto",
) -> None:
    """Show a problem, what each thought of a model predicted, what it wrote, and whether that is right.

    Args:
        run: the folder of a model that `adlm reason train` trained.
        number: number of the problem in its split, from 0.
        split: test, valid or train.
        data: the folder with the task's files, if not where they were in training.
        plain: a diffusion model unmasks everything in one order, instead of anchors first.
        device: auto, cpu, cuda or mps.
    """
    _, model, config = load_reasoner(run, files=data, device=device)
    problems = config.task.problems(split)
    if not 0 <= number < len(problems):
        raise OutOfRange("--number", number, f"0 to {len(problems) - 1}")
    limit = answer_limit(config, model.tokenizer, split)
    rows, (solved,) = solve(model.network, model.tokenizer, config, [problems[number]], split, limit=limit, plain=plain)
    anchors = [model.tokenizer.token(token) if token >= 0 else "" for token in rows.thought_targets(0)]
    console().print(_shown(solved, f"{config.task.name} {split} {number}", anchors))


def _shown(solved: SolvedProblem, title: str, anchors: Sequence[str]) -> Group:
    problem, written = solved.problem, solved.written
    parts = [Panel(Text(harmless(problem.question)), title=title, title_align="left")]
    if written.thoughts:
        table = _thoughts(written.thoughts, anchors, written.placed)
        parts.append(Panel(table, title="thoughts", title_align="left"))
    parts.append(Panel(Text(harmless(written.text)), title=f"written: {written.tokens} tokens", title_align="left"))
    if solved.right:
        verdict = Text(f"right: {solved.found}", style="bold green")
    else:
        given = "no answer in it" if solved.found is None else solved.found
        verdict = Text(f"wrong: {given}; the answer is {problem.answer}", style="bold red")
    return Group(*parts, verdict)


def _thoughts(thoughts: Sequence[Sequence[ThoughtPrediction]], anchors: Sequence[str], placed: Sequence[str]) -> Table:
    """A row per thought: its target token, the token that a diffusion model placed there, and its top tokens."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "important", *(["placed"] if placed else []), *(["predicted"] + [""] * (len(thoughts[0]) - 1))):
        table.add_column(name)
    for i, likeliest in enumerate(thoughts):
        important = anchors[i].strip() if i < len(anchors) else ""
        cells = [Text(f"{harmless(prediction.token).strip()} {prediction.probability:.0%}") for prediction in likeliest]
        filled = [Text(harmless(placed[i]).strip())] if placed else []
        table.add_row(str(i + 1), Text(harmless(important)), *filled, *cells)
    return table
