"""Run experiments of the five papers and write their results into the documentation.

    python scripts/reproduce                                    every experiment of every paper
    python scripts/reproduce mc_sf --only table-1,figure-5      some of one paper's
    python scripts/reproduce stab --quick                       check that they run; pages do not change
    python scripts/reproduce --kept                             write pages again from docs/reproductions/outcomes
    python scripts/reproduce --list                             list the experiments

Outcomes are stored in results/reproduce. An experiment runs again only if its code or settings have changed, so a
stopped command resumes. A full run writes docs/reproductions/outcomes, and from these alone the blocks of the pages in
docs/reproductions, pictures, CSV tables, and the matrix in docs/reproductions.md.
"""

from harness.command import main

if __name__ == "__main__":
    main()
