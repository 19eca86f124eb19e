"""However a run ends, the server ends with it, and the windows that had closed stay."""

import re
import signal

import pytest


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name
)
def test_a_run_that_is_ended_in_mid_window(project, until, number: signal.Signals) -> None:
    project.suite(protocol={"passes": 20})
    process = project.start()
    # A measured one: while the meter is tried out on a loaded machine, a run may begin anew.
    until(lambda: any(event.get("window", {}).get("role") == "measured" for event in project.journal()))
    until(project.server_at_work)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    in_order = number != signal.SIGKILL
    assert process.returncode == (pytest.ExitCode.INTERRUPTED if in_order else -number), output
    project.assert_no_orphans()
    events = project.journal()
    closed = [event["window"] for event in events if event["event"] == "window"]
    assert closed, (events, output)
    assert all(window["tokens"] and window["energy_j"] for window in closed)
    assert [event["event"] for event in events[len(closed) + 1 :]] == (["cut short"] if in_order else [])
    assert ("--joules-resume goes on from there" in output) == in_order
    if not in_order:
        # It could say nothing any more; the next run does.
        again = project.start()
        said = next(line for line in again.stdout if "cut short" in line)
        again.send_signal(signal.SIGINT)
        again.communicate(timeout=30)
        count = sum(window["role"] == "measured" for window in closed)
        assert re.fullmatch(
            rf"joules: a run of this suite that was cut short after {count} windows? is kept; this one begins anew "
            r"\(--joules-resume goes on with it\)\n",
            said,
        )
        project.assert_no_orphans()
