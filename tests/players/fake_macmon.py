"""A program that prints what a script says, when it says so, in place of `macmon pipe`.

    fake_macmon.py SCRIPT [--speed X] [whatever macmon takes]

A line of SCRIPT is `{"t": seconds, "line": text}`; in place of `line` there may be `stderr` with a text or `exit` with a
code. A SCRIPT whose name ends in .json is one line that is printed again and again. After its script the program
keeps still until it is ended, as one that is stuck does.
"""

import json
import sys
import time
from pathlib import Path

script = Path(sys.argv[1])
speed = float(sys.argv[sys.argv.index("--speed") + 1]) if "--speed" in sys.argv else 1.0
if "--version" in sys.argv:
    print("macmon 0.8.2")
    sys.exit()
if script.suffix == ".json":
    rows = [{"t": 0.02 * n, "line": script.read_text().strip()} for n in range(1, 500)]
else:
    rows = [json.loads(row) for row in script.read_text().splitlines()]
begun = time.monotonic()
for row in rows:
    time.sleep(max(0.0, row["t"] / speed - (time.monotonic() - begun)))
    if "line" in row:
        print(row["line"], flush=True)
    if "stderr" in row:
        print(row["stderr"], file=sys.stderr, flush=True)
    if "exit" in row:
        sys.exit(row["exit"])
time.sleep(3600)
