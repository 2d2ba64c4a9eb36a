"""The WAIT paper, Sections 4.1, 6 and 7; a module per section of the command."""
