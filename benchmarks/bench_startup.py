"""What a session without predictions pays for having the plugin installed.

Starts pytest in an empty project again and again, in pairs: once with the plugin and once without it, each first as often
as second. The median of the pairs' differences is the cost, with the spread of the middle half of them.

    python benchmarks/bench_startup.py [--pairs 30]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

ALLOWED_MS = 20.0


def session_s(folder: str, plugin: str) -> float:
    """Seconds of one session; other plugins are left out, because their start-up is only noise here."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider", folder]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - start
    if done.returncode != 5:  # nothing was collected, as there is nothing
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return took_s


def differences_ms(pairs: int) -> list[float]:
    """With the plugin less without it, in milliseconds, for each pair."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for plugin in ("joules", "no:joules"):
            session_s(folder, plugin)  # compiles what the others only load
        for number in range(pairs):
            order = ("joules", "no:joules") if number % 2 else ("no:joules", "joules")
            took_s = {plugin: session_s(folder, plugin) for plugin in order}
            found.append(1000 * (took_s["joules"] - took_s["no:joules"]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    found = differences_ms(parser.parse_args().pairs)
    low, median, high = statistics.quantiles(found, n=4)
    print(
        f"start-up cost of the plugin: {median:.1f} ms, middle half {low:.1f} to {high:.1f} ms, of {len(found)} pairs"
    )
    print(f"{'under' if median < ALLOWED_MS else 'OVER'} the {ALLOWED_MS:.0f} ms it may take")


if __name__ == "__main__":
    main()
