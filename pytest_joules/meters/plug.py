"""Smart plugs that answer over HTTP in the local network: what the makes have in common. Scope `wall`.

A plug sees everything behind it, the power supply's own losses and a screen that hangs on the same socket included. Its
power is read, never its energy total, which steps too coarsely for a short run. The address is kept out of
everything that is recorded.
"""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.records import Rail, Sample

TIMEOUT_S = 1.5
FAILURES_TO_GIVE_UP = 4
"""A plug on a radio link may miss an answer; one that misses this many in a row is gone."""

FASTEST_S = 0.5
"""The small web server in a plug stalls when it is asked more often than this."""


@dataclass(frozen=True, slots=True)
class Make:
    """How the plugs of one make are asked.

    Attributes:
        name: of the meter.
        path: of the request.
        field: where the power stands in the answer, from the outside in.
        note: what a reader of the note must know.
        calibration: half-width of the gain as a share, where the makers of plugs or of their chips state one.
    """

    name: str
    path: str
    field: tuple[str, ...]
    note: str
    calibration: float | None = None

    @property
    def rail(self) -> Rail:
        """The only rail of such a plug."""
        return Rail(
            name=f"{self.name}.wall",
            scope="wall",
            covers=("wall",),
            kind="instant",
            basis="measured",
            unit="W",
            source=f"GET {self.path} -> {'.'.join(self.field)}",
            calibration=self.calibration,
        )

    def power_w(self, address: str) -> float:
        """Ask once.

        Raises:
            MeterError: no answer, or an answer without a power in it.
        """
        answer = _get(self.name, address, self.path)
        value: Any = answer
        for key in self.field:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise MeterError(
                f"meter {self.name}: the plug's answer has no power at {'.'.join(self.field)} (it is {value!r})",
                "check that the plug is one that measures power",
            )
        return float(value)


class PlugReader:
    """Asks a plug again and again. A read takes a few seconds at most, so there is nothing to break off."""

    def __init__(self, make: Make, address: str, interval_s: float) -> None:
        self.interval_s: float | None = interval_s
        self._make, self._address, self._failures = make, address, 0

    def read(self) -> Sequence[Sample]:
        """Watts, dated at the middle of the request; not a number when an answer is missed.

        Raises:
            MeterError: `FAILURES_TO_GIVE_UP` answers in a row were missed.
        """
        before = time.monotonic()
        try:
            value = self._make.power_w(self._address)
            self._failures = 0
        except MeterError:
            self._failures += 1
            if self._failures >= FAILURES_TO_GIVE_UP:
                raise
            value = math.nan
        return [Sample(self._make.rail.name, (before + time.monotonic()) / 2, value)]

    def close(self) -> None:
        """Nothing is held between reads."""


class PlugMeter:
    """One plug at one address."""

    def __init__(self, make: Make, address: str) -> None:
        self._make, self._address = make, address
        self.name = make.name
        self.rails = (make.rail,)
        self.notes = (make.note,)

    def open(self, rate_hz: float) -> PlugReader:
        """Ask `rate_hz` times a second, or every half second at the most."""
        return PlugReader(self._make, self._address, max(1.0 / rate_hz, FASTEST_S))


def finder(make: Make) -> Callable[[str | None], Sequence[PlugMeter]]:
    """The `find` of a make: one meter when the plug at the address answers with a power."""

    def find(argument: str | None = None) -> Sequence[PlugMeter]:
        if argument is None:
            raise MeterAbsent(f"meter {make.name}: used only when asked for", f"--joules-meter {make.name}:ADDRESS")
        address = argument.removeprefix("http://").rstrip("/")
        make.power_w(address)
        return [PlugMeter(make, address)]

    return find


def _get(name: str, address: str, path: str) -> Any:
    """The JSON of a plug's answer.

    `http.client` is used bare because it knows no proxies: an address in the local network must not be sent to one.
    """
    try:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise MeterError(
            f"meter {name}: no answer from the plug ({cause})", f"check its address: --joules-meter {name}:ADDRESS"
        ) from error
    # Tasmota answers 200 and {"WARNING": "Need user=...&password=..."}.
    if response.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN) or b"Need user=" in body:
        raise MeterError(f"meter {name}: the plug asks for a password", "switch its password off while measuring")
    if response.status != http.HTTPStatus.OK:
        raise MeterError(f"meter {name}: the plug answers {response.status} {response.reason}", "check its make")
    try:
        return json.loads(body)
    except ValueError as error:
        raise MeterError(f"meter {name}: the plug's answer is not JSON", "check its make") from error
