"""Second, plain readings of schedulers and optima, written from papers and pages, that tests compare with."""
