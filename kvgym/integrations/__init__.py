"""kvgym's policies inside other engines. Each package imports its engine only when one of its classes is used."""
