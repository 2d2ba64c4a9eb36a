"""The command ``python scripts/compare_agents``; see :mod:`compare_agents.command`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compare_agents.command import main

if __name__ == "__main__":
    main()
