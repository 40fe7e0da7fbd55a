import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.errors import DataError, MissingExtra, TrainingError
from adlm.train import curves
from adlm.train.curves import CURVES, draw_curves
from adlm.train.metrics import METRICS, MetricsFile, StepMetrics, ValidationMetrics
from adlm.types import Estimate
from tests.errors import raises


def report(step: int, **changes) -> StepMetrics:
    loss = 3 + 6 / step
    whole = StepMetrics(step, 1000, loss + 0.1, loss, 1.0, 1e-3, 512 * step, 0.1 * step, 5120.0, 10**9, 0)
    return whole._replace(**changes)


def validated(step: int, mean: float, *, best: bool = False, error: float = 0.02) -> ValidationMetrics:
    return ValidationMetrics(step, Estimate(mean, error, 4), math.exp(min(mean, 700)), best, 1.0)


def record(folder: Path, *told: StepMetrics | ValidationMetrics) -> Path:
    folder.mkdir(exist_ok=True)
    with MetricsFile(folder / METRICS) as metrics:
        for each in told:
            metrics.on_step(each) if isinstance(each, StepMetrics) else metrics.on_validation(each)
    return folder


@pytest.fixture
def figures(monkeypatch) -> list:
    """The figures that are saved, in place of their pictures."""
    from matplotlib.figure import Figure

    saved: list = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: (saved.append(figure), file.write(b"png")))
    return saved


def texts(panel) -> str:
    legend = panel.get_legend()
    return " | ".join(text.get_text() for text in legend.get_texts()) if legend else ""


RUNS = {
    "one step": [report(1)],
    "one step, validated": [report(1), validated(1, 8.0, best=True)],
    "a bound of nothing": [report(step, bound=math.nan) for step in range(1, 40)],
    "a few steps": [report(step) for step in range(1, 4)] + [validated(3, 5.0, best=True)],
    "nothing finite": [
        report(1, loss=math.nan, bound=math.nan, grad_norm=math.inf, tokens=0, skipped=1),
        validated(1, math.nan, error=math.nan),
    ],
    "diverged": [report(step, loss=1.5**step, grad_norm=0.0) for step in range(1, 200)]
    + [validated(199, 1e30, error=math.inf, best=True)],
    "in a bend": [report(step) for step in range(1, 300)]
    + [validated(300, 3.1, best=True), validated(301, 3.05, best=True), validated(302, 3.2)],
}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_has_a_picture(tmp_path, name):
    folder = record(tmp_path / name, *RUNS[name])
    path = draw_curves(folder)
    assert path == folder / CURVES
    assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in folder.iterdir()) == [CURVES, METRICS]


def test_a_run_without_a_step_has_no_picture(tmp_path):
    assert draw_curves(record(tmp_path / "run")) is None
    with raises(DataError, subject=str(tmp_path / METRICS)):
        draw_curves(tmp_path)


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(MissingExtra, subject="plot"):
        draw_curves(record(tmp_path / "run", report(1)))


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    pyplot = "matplotlib.pyplot" in sys.modules
    draw_curves(record(tmp_path / "run", *RUNS["in a bend"]))
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == pyplot


def test_the_panels_show_what_was_recorded(tmp_path, figures):
    told = [report(step, lr=1e-3 * step) for step in range(1, 201)]
    folder = record(
        tmp_path / "run", *told, validated(200, 3.2, best=True), validated(201, 3.0, best=True), validated(202, 3.1)
    )
    draw_curves(folder, name="a run of $5_")
    (figure,) = figures
    training, validation, gradient, rate = figure.axes[:4]
    assert figure.get_suptitle() == "a run of $5_"
    raw = training.lines[0]
    np.testing.assert_allclose(raw.get_ydata(), [each.loss for each in told])
    np.testing.assert_allclose(rate.lines[0].get_ydata(), [each.lr for each in told])
    np.testing.assert_allclose(gradient.lines[0].get_ydata(), 1.0)
    assert "loss: 3." in texts(training)
    assert "clean bound: 3." in texts(training)
    assert "best: 3.000 ± 0.020 at step 201" in texts(validation)
    (above,) = training.child_axes
    assert above.get_xlabel() == "tokens"
    above.apply_aspect()
    assert above.get_xlim()[1] == pytest.approx(512 * training.get_xlim()[1])


def test_a_loss_that_is_the_bound_is_drawn_once_and_says_so(tmp_path, figures):
    draw_curves(record(tmp_path / "run", *(report(step, loss=3.0, bound=3.0) for step in range(1, 20))))
    draw_curves(record(tmp_path / "run", *(report(step, bound=math.nan) for step in range(1, 20))))
    assert "which is the clean bound" in texts(figures[0].axes[0])
    assert "bound" not in texts(figures[1].axes[0])


def test_skipped_steps_are_marked_where_they_were(tmp_path, figures):
    draw_curves(record(tmp_path / "run", *(report(step, skipped=(step >= 7) + (step >= 9)) for step in range(1, 20))))
    gradient = figures[0].axes[1]
    assert texts(gradient) == "2 steps skipped: not finite"
    np.testing.assert_array_equal(gradient.lines[-1].get_xdata(), [7, 9])


def test_a_long_run_is_thinned_and_keeps_its_spikes_and_validations(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "_BINS", 20)
    told = []
    for step in range(1, 996):
        told.append(report(step, grad_norm=50.0 if step == 333 else 1.0))
        if step % 5 == 0:
            told.append(validated(step, 3.0))
    found, validations = curves._read(record(tmp_path / "run", *told) / METRICS)
    assert 10 <= len(found["step"].mean) <= 20
    assert found["grad_norm"].high.max() == 50.0
    assert found["step"].high[-1] == 995
    assert len(validations) == 199


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=60))
def test_smoothing_stays_between_the_values_and_fills_no_gaps(values):
    given = np.array(values)
    smooth = curves._smoothed(given)
    assert (np.isnan(smooth) == np.isnan(given)).all()
    if np.isfinite(given).any():
        room = 1e-9 * np.nanmax(np.abs(given))
        assert np.nanmin(smooth) >= np.nanmin(given) - room
        assert np.nanmax(smooth) <= np.nanmax(given) + room


def test_smoothing_calms_noise_and_follows_a_line():
    line = np.linspace(0, 1, 400)
    noise = np.where(np.arange(400) % 2, 0.1, -0.1)
    smooth = curves._smoothed(line + noise)
    np.testing.assert_allclose(smooth[40:-40], line[40:-40], atol=0.01)


def test_a_full_disk_leaves_the_last_picture(tmp_path):
    resource = pytest.importorskip("resource")
    folder = record(tmp_path / "run", report(1))
    before = draw_curves(folder).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with raises(TrainingError, subject=str(folder / CURVES)):
            draw_curves(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (folder / CURVES).read_bytes() == before


def test_numbers_on_the_axes_are_short():
    shown = [curves._short(value) for value in (0, 0.003, 1, 999, 1000, 2500, 1e6, 1.5e9, 2e12)]
    assert shown == ["0", "0.003", "1", "999", "1k", "2.5k", "1M", "1.5B", "2T"]
    assert all(first != second for first, second in pairwise(shown))
