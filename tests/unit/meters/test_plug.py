import http.server
import json
import math
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pytest_joules import meters
from pytest_joules.errors import MeterError
from pytest_joules.meters import plug, shelly, tasmota

SHELLY = {"id": 0, "output": True, "apower": 61.7, "voltage": 230.1, "aenergy": {"total": 1044.2}}
TASMOTA = {"StatusSNS": {"Time": "2026-03-02T10:00:00", "ENERGY": {"Total": 3.185, "Power": 62, "Factor": 0.97}}}


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """A plug on the loopback address: `answer` is what it says next, `paths` what it was asked."""
    state = SimpleNamespace(answer=SHELLY, status=200, delay_s=0.0, paths=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.paths.append(self.path)
            time.sleep(state.delay_s)
            body = state.answer if isinstance(state.answer, bytes) else json.dumps(state.answer).encode()
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state.address = f"127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("source", "answer", "path", "watts", "calibration"),
    [
        (shelly, SHELLY, "/rpc/Switch.GetStatus?id=0", 61.7, None),
        (tasmota, TASMOTA, "/cm?cmnd=Status%2010", 62.0, 0.05),
    ],
)
def test_power_at_the_wall(server, source, answer, path, watts, calibration) -> None:
    server.answer = answer
    [meter] = source.find(server.address)
    [rail] = meter.rails
    assert (rail.scope, rail.basis, rail.unit, rail.role) == ("wall", "measured", "W", "counted")
    assert rail.calibration == calibration
    before = time.monotonic()
    [sample] = meter.open(5.0).read()
    assert sample.value == watts
    assert before <= sample.mono <= time.monotonic()
    assert set(server.paths) == {path}


def test_the_address_is_in_no_record(server) -> None:
    [meter] = shelly.find(f"http://{server.address}/")
    assert "127.0.0.1" not in repr(meter.rails) + repr(meter.notes)


def test_a_plug_is_asked_twice_a_second_at_the_most(server) -> None:
    [meter] = shelly.find(server.address)
    assert meter.open(10.0).interval_s == 0.5
    assert meter.open(1.0).interval_s == 1.0


def test_a_proxy_of_the_environment_is_not_asked(server, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert shelly.find(server.address)


@pytest.mark.parametrize(
    ("answer", "status", "cause"),
    [
        ({"id": 0, "output": True}, 200, "no power at apower"),
        ({"apower": None}, 200, "no power at apower"),
        ({"apower": "61,7"}, 200, "no power at apower"),
        ({"apower": True}, 200, "no power at apower"),
        ({"apower": -3.2}, 200, "no power at apower"),
        (b'{"apower": NaN}', 200, "no power at apower"),
        ([61.7], 200, "no power at apower"),
        (b"<html>router</html>", 200, "not JSON"),
        ({"apower": 61.7}, 404, "answers 404"),
        (b"", 401, "asks for a password"),
        ({"WARNING": "Need user=<username>&password=<password>"}, 200, "asks for a password"),
    ],
)
def test_an_answer_without_a_power_is_an_error_and_never_zero(server, answer, status, cause) -> None:
    server.answer, server.status = answer, status
    with pytest.raises(MeterError, match=cause):
        shelly.find(server.address)


def test_a_missed_answer_is_a_gap_and_several_are_the_end(server) -> None:
    [meter] = shelly.find(server.address)
    reader = meter.open(5.0)
    server.status = 500
    assert all(math.isnan(reader.read()[0].value) for _ in range(plug.FAILURES_TO_GIVE_UP - 1))
    server.status = 200
    assert reader.read()[0].value == 61.7
    server.status = 500
    for _ in range(plug.FAILURES_TO_GIVE_UP - 1):
        reader.read()
    with pytest.raises(MeterError, match="500"):
        reader.read()


def test_a_plug_that_does_not_answer_is_given_up_in_time(server, monkeypatch) -> None:
    monkeypatch.setattr(plug, "TIMEOUT_S", 0.1)
    server.delay_s = 0.3
    with pytest.raises(MeterError, match="no answer"):
        shelly.find(server.address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port", "no spaces allowed"])
def test_an_address_that_leads_nowhere(address) -> None:
    with pytest.raises(MeterError, match="no answer from the plug"):
        shelly.find(address)


@pytest.mark.parametrize("name", ["shelly", "tasmota"])
def test_plugs_are_not_looked_for_unasked(name) -> None:
    [found] = meters.look([name])
    assert not found.meters
    assert f"--joules-meter {name}:ADDRESS" in found.next_step
