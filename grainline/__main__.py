"""`python -m grainline`, which is also what torchrun starts: torchrun -m grainline train RECIPE ..."""

import os
import sys

from grainline.cli.main import main

if __name__ == "__main__":  # not in the processes of web/guard.py that decode images
    try:
        main()
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        # DistributedDataParallel keeps gloo's threads alive beyond the process group (torch 2.13). Where one
        # of them still holds a tensor when the interpreter ends, it aborts the process, some once in 15 runs,
        # and torchrun reports a failure after the last weights were written. All output is written: end here.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)
