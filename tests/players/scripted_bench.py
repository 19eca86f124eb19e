"""A benchmark of llama.cpp that prints from a script. Run as a program, with the standard library only.

usage: scripted_bench.py SCENARIO.json [the benchmark's own arguments]

SCENARIO.json has `help`, `version` and `steps`, all optional. Each step has one of: `out` and `err` (text, written as it stands and flushed),
`work_s` (of CPU time: a sleep goes on while the program is held), `sleep_s`, `exit` (a code), `signal` (it dies of it). With `once` its steps are for a run whose arguments hold that word, and those of
`then` for all others.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    scenario, arguments = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]
    for question in ("help", "version"):
        if arguments[:1] == [f"--{question}"]:
            print(scenario.get(question, ""))
            return 0
    steps = scenario["steps"] if scenario.get("once", "") in ["", *arguments] else scenario["then"]
    for step in steps:
        for stream, key in ((sys.stdout, "out"), (sys.stderr, "err")):
            stream.write(step.get(key, ""))
            stream.flush()
        until = time.process_time() + step.get("work_s", 0)
        while time.process_time() < until:
            pass
        time.sleep(step.get("sleep_s", 0))
        if "exit" in step:
            return int(step["exit"])
        if "signal" in step:
            os.kill(os.getpid(), step["signal"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
