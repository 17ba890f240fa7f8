"""React to SIGTERM: `ignore` it, or `save` for a number of seconds, print a last line, and end.

python asked_to_leave.py save 7
"""

import signal
import sys
import time

PAUSE_S = 0.2
asked = None


def ask(number, frame):
    global asked
    # Later ones repeat the request.
    asked = asked or time.time()


signal.signal(signal.SIGTERM, ask)
reaction, seconds = sys.argv[1], float(sys.argv[2])
print("Ready", flush=True)
while asked is None:
    time.sleep(PAUSE_S)
while reaction == "ignore" or time.time() < asked + seconds:
    print(f"Here at {time.time():.1f}", flush=True)
    time.sleep(PAUSE_S)
print("Saved: this is the last line", flush=True)
