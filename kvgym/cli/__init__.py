"""The command line ``kvgym …``: a module per command, and the options and tables that commands share.

:mod:`kvgym.cli.app` puts the commands together.
May import everything, slow libraries only inside the commands that use them; nothing may import it.
"""
