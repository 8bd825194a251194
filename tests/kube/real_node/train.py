"""Runs Batuta's small trainer for as many steps as a file beside its checkpoint says when it starts.

So a test decides when a training comes to its end, on a machine of any speed. It runs in a container.
With SAVES=when-asked it makes no checkpoint by itself.
"""

import os
import sys
from pathlib import Path

from batuta.demo import trainer

if __name__ == "__main__":
    steps = Path(os.environ["BATUTA_CHECKPOINT_DIR"], "steps").read_text()
    every = "0" if os.environ.get("SAVES") == "when-asked" else "5"
    sys.exit(trainer.main(["--steps", steps, "--work-ms", "40", "--checkpoint-every", every]))
