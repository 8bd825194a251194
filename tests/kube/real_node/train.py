"""Runs Batuta's small trainer for as many steps as a file beside its checkpoint says when it starts.

So a test decides when a training comes to its end, on a machine of any speed. It runs in a container.
"""

import os
import sys
from pathlib import Path

from batuta.demo import trainer

if __name__ == "__main__":
    steps = Path(os.environ["BATUTA_CHECKPOINT_DIR"], "steps").read_text()
    sys.exit(trainer.main(["--steps", steps, "--work-ms", "40", "--checkpoint-every", "5"]))
