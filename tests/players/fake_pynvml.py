"""A driver of made-up GPUs with the interface of `pynvml`, for machines without one.

`FakeNvml(script)` takes the place of the module: `monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(...))`.
A script is what the cases' nvml*.json hold: `init_error`, and `devices` with `index`, `uuid`, `pci`, `name`, `mig_mode`,
`error`, `power_mw`, `energy_mj` and `enforced_limit_mw`. A quantity is a number, `{"error": code}`, or steps of time
`[[t, either], ...]`; time is the attribute `now`. Two keys go beyond the cases: `architecture` and `fields`,
the latter by field id. Without them the driver is too old to know the question.

For what is looked at beside power there are `temperature_v_c`, `temperature_c`, `clocks_mhz` by clock, `event_reasons`,
`throttle_reasons`, `pids`, and `process_names` by pid.

What can be set: `limits_mw` (lowest, highest), `default_limit_mw`, `limit_mw`, `graphics_clocks_mhz` and `refuses`, an error code for
every call that sets something. `calls` are those calls, in order; `locked_mhz` of a device is what its clocks are locked to.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MESSAGES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
    27: "Not Ready",
}
UNSIGNED_LONG_LONG = 3


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(MESSAGES.get(value, f"NVML Error with code {value}"))
        self.value = value


class FakeNvml:
    NVMLError = NVMLError

    def __init__(self, script: dict[str, Any]) -> None:
        self.devices = script["devices"]
        self.init_error = script.get("init_error")
        self.now = 0.0
        self.users = 0
        self.calls: list[tuple[Any, ...]] = []

    @classmethod
    def from_file(cls, path: Path, **every_device: Any) -> FakeNvml:
        """A driver as scripted, with `every_device` added to each of its GPUs."""
        script = json.loads(path.read_text())
        script["devices"] = [device | every_device for device in script["devices"]]
        return cls(script)

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error)
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self._open("index", index)

    def nvmlDeviceGetHandleByPciBusId(self, pci: str) -> dict[str, Any]:
        return self._open("pci", pci)

    def nvmlDeviceGetIndex(self, device: dict[str, Any]) -> int:
        return device["index"]

    def nvmlDeviceGetName(self, device: dict[str, Any]) -> bytes:
        return device["name"].encode()

    def nvmlDeviceGetUUID(self, device: dict[str, Any]) -> str:
        return device["uuid"]

    def nvmlDeviceGetPciInfo(self, device: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(busId=device["pci"].encode())

    def nvmlDeviceGetArchitecture(self, device: dict[str, Any]) -> int:
        return self._value(device, "architecture", unknown=13)

    def nvmlDeviceGetCudaComputeCapability(self, device: dict[str, Any]) -> tuple[int, int]:
        return self._value(device, "capability", unknown=13)

    def nvmlDeviceGetMigMode(self, device: dict[str, Any]) -> list[int]:
        if "mig_mode" not in device:
            raise NVMLError(3)
        return device["mig_mode"]

    def nvmlDeviceGetPowerUsage(self, device: dict[str, Any]) -> int:
        return self._value(device, "power_mw")

    def nvmlDeviceGetTotalEnergyConsumption(self, device: dict[str, Any]) -> int:
        return self._value(device, "energy_mj")

    def nvmlDeviceGetEnforcedPowerLimit(self, device: dict[str, Any]) -> int:
        return self._value(device, "enforced_limit_mw")

    def nvmlDeviceGetFieldValues(self, device: dict[str, Any], field_ids: list[int]) -> list[SimpleNamespace]:
        if "fields" not in device:
            raise NVMLError(13)
        return [self._field(device["fields"], field_id) for field_id in field_ids]

    def nvmlDeviceGetTemperatureV(self, device: dict[str, Any], sensor: int) -> int:
        return self._value(device, "temperature_v_c", unknown=13)

    def nvmlDeviceGetTemperature(self, device: dict[str, Any], sensor: int) -> int:
        return self._value(device, "temperature_c")

    def nvmlDeviceGetClockInfo(self, device: dict[str, Any], clock: int) -> int:
        return self._value(device.get("clocks_mhz", {}), clock)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: dict[str, Any]) -> int:
        return self._value(device, "event_reasons", unknown=13)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: dict[str, Any]) -> int:
        return self._value(device, "throttle_reasons")

    def nvmlDeviceGetComputeRunningProcesses(self, device: dict[str, Any]) -> list[SimpleNamespace]:
        if "pids" not in device:
            raise NVMLError(3)
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in device["pids"]]

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        names = {pid: name for device in self.devices for pid, name in device.get("process_names", {}).items()}
        return self._value(names, pid, unknown=6).encode()

    def nvmlDeviceGetSupportedMemoryClocks(self, device: dict[str, Any]) -> list[int]:
        if "graphics_clocks_mhz" not in device:
            raise NVMLError(3)
        return [405, 7001]

    def nvmlDeviceGetSupportedGraphicsClocks(self, device: dict[str, Any], memory: int) -> list[int]:
        return device["graphics_clocks_mhz"]

    def nvmlDeviceGetPowerManagementLimitConstraints(self, device: dict[str, Any]) -> list[int]:
        if "limits_mw" not in device:
            raise NVMLError(3)
        return device["limits_mw"]

    def nvmlDeviceGetPowerManagementDefaultLimit(self, device: dict[str, Any]) -> int:
        return self._value(device, "default_limit_mw")

    def nvmlDeviceGetPowerManagementLimit(self, device: dict[str, Any]) -> int:
        return self._value(device, "limit_mw")

    def nvmlDeviceSetPowerManagementLimit(self, device: dict[str, Any], limit_mw: int) -> None:
        self._set(device, "limit", limit_mw)
        device["limit_mw"] = limit_mw

    def nvmlDeviceSetGpuLockedClocks(self, device: dict[str, Any], low: int, high: int) -> None:
        self._set(device, "lock", low, high)
        device["locked_mhz"] = low, high

    def nvmlDeviceResetGpuLockedClocks(self, device: dict[str, Any]) -> None:
        self._set(device, "unlock")
        device.pop("locked_mhz", None)

    def _set(self, device: dict[str, Any], *call: Any) -> None:
        if not self.users:
            raise NVMLError(1)
        if device.get("refuses"):
            raise NVMLError(device["refuses"])
        self.calls.append((device["index"], *call))

    def _field(self, fields: dict[int, Any], field_id: int) -> SimpleNamespace:
        try:
            value, outcome = self._value(fields, field_id), 0
        except NVMLError as error:
            value, outcome = 0, error.value
        return SimpleNamespace(
            nvmlReturn=outcome, valueType=UNSIGNED_LONG_LONG, value=SimpleNamespace(ullVal=value, uiVal=-1)
        )

    def _open(self, key: str, wanted: Any) -> dict[str, Any]:
        if not self.users:
            raise NVMLError(1)
        for device in self.devices:
            if device[key] == wanted or (key == "pci" and device[key].endswith(wanted)):
                if device.get("error"):
                    raise NVMLError(device["error"])
                return device
        raise NVMLError(6 if key == "pci" else 2)

    def _value(self, holder: dict[Any, Any], key: Any, unknown: int = 3) -> Any:
        value = holder.get(key, {"error": unknown})
        if key != "capability" and isinstance(value, list):
            value = [step for t, step in value if t <= self.now + 1e-9][-1]
        if isinstance(value, dict):
            raise NVMLError(value["error"])
        return value
