"""Programs of this folder, one after the other: to start ranks takes longer than most programs.

Each argument is a program's name, with its arguments after colons.
"""

import runpy
import sys
from pathlib import Path

import tinygrad_mem.distributed as dist

for program in sys.argv[1:]:
    name, *sys.argv[1:] = program.split(":")
    for module in [each for each in sys.modules if each.startswith("tests.distributed.programs.")]:
        del sys.modules[module]  # each program makes its own group
    try:
        runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    except BaseException:
        print(f"in {name}.py", file=sys.stderr, flush=True)
        raise
    print(f"{name} ended on rank {dist.get_rank()}\n", end="", flush=True)
    dist.destroy_process_group()
