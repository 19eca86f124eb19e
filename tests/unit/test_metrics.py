from dataclasses import replace

import pytest

from pytest_joules.errors import Void
from pytest_joules.metrics import METRICS, decode, energy_per_token_mj, net_energy_per_token_mj
from pytest_joules.records import Grade, IdleBaseline, RequestRecord, Window
from pytest_joules.sweep import Row, Sweep, from_run

QUIET = IdleBaseline(mean_w=4.0, sd_w=0.1, seconds=20.0)
ANSWER = RequestRecord(
    slot=0, round=0, sent_s=0.25, received_s=9.0, prompt_n=20, cache_n=0, predicted_n=128, prompt_ms=60.0, predicted_ms=8000.0,
    stop_type="limit",
)  # fmt: skip
STREAMED = replace(ANSWER, first_token_s=0.75, inter_token_median_s=0.125, inter_token_p99_s=0.5,
                   draft_n=100, draft_accepted_n=64, grade=Grade(question="a", correct=True, extracted="42"))  # fmt: skip


TOGETHER = {
    "decode_energy_per_token_mj": None,
    "prefill_share": None,
    "energy_per_prompt_token_mj": None,
    "prompt_tokens_per_s": None,
}
"""Figures that no single window has."""


def at_speed(window: Window, times: float) -> Window:
    """The same tokens and energy in less time."""
    requests = tuple(
        replace(
            answer,
            sent_s=answer.sent_s / times,
            first_token_s=answer.first_token_s / times,
            inter_token_median_s=answer.inter_token_median_s / times,
        )
        for answer in window.requests
        if answer.first_token_s is not None and answer.inter_token_median_s is not None
    )
    return replace(window, end_mono=window.start_mono + window.window_s / times, requests=requests)


def test_definitions(make_window) -> None:
    window = make_window(8, energy_j=250.0, tokens=1024, prompt_tokens=160, start_mono=5.0, end_mono=15.0,
                         requests=(STREAMED, replace(STREAMED, first_token_s=1.75, inter_token_median_s=0.375,
                                                     grade=Grade(question="b", correct=False))))  # fmt: skip
    figures = {name: metric.of_window(window, QUIET) for name, metric in METRICS.items()}
    assert figures == pytest.approx(
        {
            "energy_per_token_mj": 1000 * 250 / 1024,
            "net_energy_per_token_mj": 1000 * (250 - 40) / 1024,
            "tokens_per_s": 102.4,
            "tokens_per_s_per_request": 12.8,
            "draft_acceptance": 0.64,
            "tokens_per_step": 2.0,
            "power_w": 25.0,
            "idle_power_w": 4.0,
            "energy_j": 250.0,
            "window_s": 10.0,
            "tokens": 1024.0,
            "prompt_tokens": 160.0,
            "time_to_first_token_s": 1.0,
            "inter_token_s": 0.25,
            "energy_per_correct_j": 250.0,
            "accuracy": 0.5,
            "correct": 1.0,
            "answered": 1.0,
        }
        | TOGETHER
    )


def test_every_metric_is_a_property_of_table_and_row_under_its_own_name() -> None:
    assert all(name == metric.name and metric.meaning for name, metric in METRICS.items())
    for holder in (Sweep, Row):
        assert {name for name in METRICS if name in vars(holder)} == set(METRICS)


def test_missing_energy_is_no_figure_and_never_zero(make_window) -> None:
    window = make_window(energy_j=None, requests=(STREAMED,))
    figures = {name: metric.of_window(window, QUIET) for name, metric in METRICS.items()}
    assert {name for name, figure in figures.items() if figure is None} == {
        "energy_per_token_mj", "net_energy_per_token_mj", "energy_per_correct_j", "power_w", "energy_j", *TOGETHER,
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
    plain = make_window(2, requests=(STREAMED, STREAMED))
    dearer = replace(plain, energy_j=2 * plain.energy_j)
    faster = at_speed(plain, 2)
    for name, metric in METRICS.items():
        if name in {"net_energy_per_token_mj", "idle_power_w", *TOGETHER}:
            continue
        before = metric.of_window(plain, None)
        assert metric.of_window(dearer, None) == pytest.approx(before * 2.0**metric.energy_power), name
        assert metric.of_window(faster, None) == pytest.approx(before * 2.0**metric.speed_power), name


def of_length(
    make_window, answer_tokens: int, per_token_j: float = 0.05, beside_j: float = 0.4, answers: int = 4, **changes
):
    """A window of answers that cost so much a token and so much beside their tokens."""
    energy_j = answers * (beside_j + per_token_j * answer_tokens)
    return make_window(
        answers, answer_tokens=answer_tokens, energy_j=energy_j, tokens=answers * answer_tokens, requests=(ANSWER,) * answers,
        **({"role": "measured" if answer_tokens == 128 else "length"} | changes),
    )  # fmt: skip


def test_the_slope_over_answer_length_leaves_the_prompt_out(make_window) -> None:
    line = decode([of_length(make_window, n) for n in (128, 384, 256)])
    assert line is not None
    assert (line.slope_mj, line.intercept_j, line.shortest_j) == pytest.approx((50.0, 0.4, 0.4 + 0.05 * 128))
    # Windows of more rounds, or of more slots, are the same requests more often.
    doubled = [of_length(make_window, 128, answers=8), of_length(make_window, 384)]
    assert decode(doubled).slope_mj == pytest.approx(50.0)


def test_one_length_or_no_energy_is_no_line(make_window) -> None:
    assert decode([of_length(make_window, 128), of_length(make_window, 128)]) is None
    assert decode([of_length(make_window, 128), replace(of_length(make_window, 384), energy_j=None)]) is None
    assert decode([]) is None


def test_the_table_has_the_slope_of_each_pass(make_window, make_run) -> None:
    windows = [
        of_length(make_window, n, per_token_j, pass_index=i, answers=1)
        for i, per_token_j in enumerate((0.05, 0.06))
        for n in (128, 384)
    ]
    [cell] = from_run(make_run(*windows)).cells
    assert [figures["decode_energy_per_token_mj"] for figures in cell.passes] == pytest.approx([50.0, 60.0])
    assert cell.mean("energy_per_token_mj") == pytest.approx(55.0 + 400 / 128)
    spoiled = [replace(w, outcome="void", failure="it died") if w.role == "length" else w for w in windows]
    [cell] = from_run(make_run(*spoiled)).cells
    assert cell.mean("energy_per_token_mj") > 0
    with pytest.raises(Void, match="pass 1, answers of 384 tokens: it died"):
        cell.mean("decode_energy_per_token_mj")
    falling = [replace(w, energy_j=1.0) if (w.pass_index, w.role) == (1, "length") else w for w in windows]
    [cell] = from_run(make_run(*falling)).cells
    with pytest.raises(
        Void, match="pass 2: longer answers took no more energy than shorter ones; measure longer windows"
    ):
        cell.mean("decode_energy_per_token_mj")


@pytest.mark.parametrize(
    ("requests", "first", "between"),
    [
        ((), None, None),
        ((ANSWER,), None, None),
        ((STREAMED, ANSWER), None, None),
        ((STREAMED, replace(STREAMED, inter_token_median_s=None)), 0.5, None),
    ],
    ids=["no requests", "not streamed", "one not streamed", "one of a single token"],
)
def test_times_of_tokens_are_undefined_unless_all_are_known(make_window, requests, first, between) -> None:
    window = make_window(requests=requests)
    assert METRICS["time_to_first_token_s"].of_window(window, None) == first
    assert METRICS["inter_token_s"].of_window(window, None) == between


def test_a_table_says_why_it_has_no_times_of_tokens(make_run, make_window) -> None:
    sweep = from_run(make_run(make_window(1, requests=(ANSWER,))))
    for name in ("time_to_first_token_s", "inter_token_s"):
        with pytest.raises(Void, match=rf"parallel=1: {name} is undefined: .*not streamed.*request: {{stream: true}}"):
            getattr(sweep, name)[1]
    for tokens, why in (
        (1, "answers of one token have no time between tokens; raise answer_tokens"),
        (8, "the pieces of the stream are no single tokens, and the server does not count them"),
    ):
        untimed = replace(STREAMED, inter_token_median_s=None, predicted_n=tokens)
        sweep = from_run(make_run(make_window(1, requests=(untimed,))))
        assert sweep.time_to_first_token_s[1] == 0.5
        with pytest.raises(Void, match=why):
            sweep[1].inter_token_s  # noqa: B018


def test_times_of_a_round_counted_from_its_window() -> None:
    later = STREAMED.later(10.0)
    assert (later.sent_s, later.first_token_s, later.received_s) == (10.25, 10.75, 19.0)
    assert later.inter_token_median_s == STREAMED.inter_token_median_s
    assert ANSWER.later(10.0).first_token_s is None
