"""Compare schedules of kvgym with those of an engine's own scheduler.

    python scripts/conformance vllm --version 0.33.0 --workloads 100
    python scripts/conformance sarathi --source FOLDER
    python scripts/conformance vidur --source FOLDER

The wheel of vLLM (about 340 MB) is downloaded once into a cache folder. The others are read from a checkout.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance.command import main

if __name__ == "__main__":
    main()
