"""Windows of other kinds than the usual one, on the real thing."""

import pytest

ANY = """
    import pytest

    pytestmark = pytest.mark.joules("real")

    def test_any(sweep):
        assert {claim}
"""


def gate(window, name: str):
    """The only gate of this name."""
    [found] = [gate for gate in window.gates if gate.name == name]
    return found


def test_closed_loops_of_two_answer_lengths(project) -> None:
    project.suite(
        vary={"parallel": [2]},
        request={"answer_tokens": 8, "lengths": [4], "closed_loop": True},
        protocol={"passes": 2, "min_window_s": None, "rounds": 8},
    )
    project.write("test_real.py", ANY.format(claim="0.1 < sweep.decode_energy_per_token_mj[2] < 5000"))
    done = project.run()
    assert done.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    windows = project.stored().run.windows
    # The second pass takes the lengths the other way round.
    assert [(w.role, w.answer_tokens) for w in windows] == [
        ("length", 4), ("measured", 8), ("measured", 8), ("length", 4),
    ]  # fmt: skip
    for window in windows:
        assert window.outcome != "void", window.reasons
        # Eight questions a slot, the next one sent the moment one is answered.
        assert len(window.requests) % 16 == 0
        assert {answer.predicted_n for answer in window.requests} == {window.answer_tokens}
        starts = sorted(answer.sent_s for answer in window.requests)
        assert sum(start < 0.01 for start in starts) == 2
        assert "of the time are the drain" in str(gate(window, "achieved batch").value)
    assert all(gate(w, "answer lengths").value for w in windows if w.role == "measured")


def test_cold_windows_rest_where_warm_ones_work(project) -> None:
    project.suite(
        vary={"warm": ["cold", "warm"]},
        server={"parallel": 1},
        protocol={"rest_s": 1, "idle_s": 0.6, "min_window_s": None, "rounds": 1},
        gates={"thin_samples": 1000},
    )
    project.write("test_real.py", ANY.format(claim="sweep.tokens_per_s['cold'] > 1"))
    done = project.run()
    assert done.ret == pytest.ExitCode.OK, done.outlines
    cold, warm = (w for w in project.stored().run.windows if w.role == "measured")
    assert (warm.condition, cold.condition) == ({"warm": "warm"}, {"warm": "cold"})
    assert warm.engine["warmup_s"] > 0
    assert cold.engine["warmup_s"] == 0
    assert "W idle" in str(gate(cold, "rested").value)
    assert not any(g.name == "rested" for g in warm.gates)
    # The look at the first server told how long the windows would be, before any of them was measured.
    foretold = next(
        n for n, line in enumerate(done.outlines) if line.startswith("joules: thin windows ahead (estimate")
    )
    assert "answer_tokens" in done.outlines[foretold]
    assert foretold < next(n for n, line in enumerate(done.outlines) if "real 1/2" in line)
