"""The command line ``kvgym …``: one module per command, and the options and tables they share.

:mod:`kvgym.cli.app` puts the commands together. This is the top of the library: it may import everything below,
slow libraries inside the commands that use them, and nothing may import it.
"""
