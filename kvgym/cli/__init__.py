"""The command line ``kvgym …``: one module per command, and the options and tables they share.

:mod:`kvgym.cli.app` puts the commands together.
May import everything, slow libraries inside the commands that use them; nothing may import it.
"""
