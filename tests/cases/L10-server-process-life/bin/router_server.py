"""Starts a child, writes its process id into the file named first, and forgets it: on SIGTERM it ends alone.

With a second argument `apart` the child leads a session of its own, as a daemon does.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

child = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time\nwhile True: time.sleep(0.2)"], start_new_session="apart" in sys.argv[2:]
)
Path(sys.argv[1]).write_text(str(child.pid))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("listening", flush=True)
while True:
    time.sleep(0.2)
