"""Hears neither SIGTERM nor SIGINT."""

import signal
import time

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("listening", flush=True)
while True:
    time.sleep(0.2)
