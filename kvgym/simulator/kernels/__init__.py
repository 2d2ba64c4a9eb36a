"""What compiled policies are built of; authors import it by :mod:`kvgym.kernels`, which lists and explains it."""
