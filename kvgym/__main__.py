"""The command line as a module: ``python -m kvgym``, where the command ``kvgym`` is not on the path."""

from kvgym.cli.app import main

main()
