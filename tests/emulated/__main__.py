"""``python -m tests.emulated -m MODULE ...`` or ``SCRIPT ...``: runs a program on the emulated device."""

import runpy
import sys

from .attach import attach

device = attach()
device.show()
sys.argv = sys.argv[1:]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
device.hide()
if problems := device.problems():
    sys.exit("\n".join(["found by the emulated device:", *problems]))
