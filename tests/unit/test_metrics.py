import pytest

from pytest_joules.metrics import METRICS, energy_per_token_mj, net_energy_per_token_mj
from pytest_joules.records import IdleBaseline
from pytest_joules.sweep import Row, Sweep

QUIET = IdleBaseline(mean_w=4.0, sd_w=0.1, seconds=20.0)


def test_definitions(make_window) -> None:
    window = make_window(8, energy_j=250.0, tokens=1024, prompt_tokens=160, start_mono=5.0, end_mono=15.0)
    figures = {name: metric.of_window(window, QUIET) for name, metric in METRICS.items()}
    assert figures == pytest.approx(
        {
            "energy_per_token_mj": 1000 * 250 / 1024,
            "net_energy_per_token_mj": 1000 * (250 - 40) / 1024,
            "tokens_per_s": 102.4,
            "tokens_per_s_per_request": 12.8,
            "power_w": 25.0,
            "energy_j": 250.0,
            "window_s": 10.0,
            "tokens": 1024.0,
            "prompt_tokens": 160.0,
        }
    )


def test_every_metric_is_a_property_of_table_and_row_under_its_own_name() -> None:
    assert all(name == metric.name and metric.meaning for name, metric in METRICS.items())
    for holder in (Sweep, Row):
        assert {name for name in METRICS if name in vars(holder)} == set(METRICS)


def test_missing_energy_is_no_figure_and_never_zero(make_window) -> None:
    window = make_window(energy_j=None)
    figures = {name: metric.of_window(window, QUIET) for name, metric in METRICS.items()}
    assert {name for name, figure in figures.items() if figure is None} == {
        "energy_per_token_mj", "net_energy_per_token_mj", "power_w", "energy_j",
    }  # fmt: skip


def test_no_tokens_no_energy_per_token(make_window) -> None:
    window = make_window(tokens=0)
    assert energy_per_token_mj(window) is None
    assert net_energy_per_token_mj(window, QUIET) is None


@pytest.mark.parametrize(
    "idle",
    [
        None,
        IdleBaseline(mean_w=4.0, sd_w=0.21, seconds=20.0),
        IdleBaseline(mean_w=20.0, sd_w=0.1, seconds=20.0),
        IdleBaseline(mean_w=0.0, sd_w=0.1, seconds=20.0),
    ],
    ids=["none", "restless", "as much as the window", "noise about zero"],
)
def test_net_energy_is_refused_without_a_usable_baseline(make_window, idle: IdleBaseline | None) -> None:
    assert net_energy_per_token_mj(make_window(), idle) is None


def test_scaling_of_each_metric_agrees_with_its_definition(make_window) -> None:
    plain = make_window(2)
    dearer = make_window(2, energy_j=2 * plain.energy_j)
    # Twice the speed: the same tokens and energy in half the time.
    faster = make_window(2, end_mono=plain.start_mono + plain.window_s / 2)
    for name, metric in METRICS.items():
        if name == "net_energy_per_token_mj":
            continue
        before = metric.of_window(plain, None)
        assert metric.of_window(dearer, None) == pytest.approx(before * 2.0**metric.energy_power), name
        assert metric.of_window(faster, None) == pytest.approx(before * 2.0**metric.speed_power), name
