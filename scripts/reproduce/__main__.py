"""Run experiments of the five papers, and write what came out into the documentation.

    python scripts/reproduce                                    every experiment of every paper
    python scripts/reproduce mc_sf --only table-1,figure-5      some of one paper's
    python scripts/reproduce stab --quick                       see that they run; pages stay as they are
    python scripts/reproduce --list                             what there is

What came out is kept in results/reproduce; an experiment whose code and settings are the same is not run again, so a
command that was stopped goes on. A full run writes the blocks of the pages in docs/reproductions, the pictures and the
matrix in docs/reproductions.md.
"""

from harness.command import main

if __name__ == "__main__":
    main()
