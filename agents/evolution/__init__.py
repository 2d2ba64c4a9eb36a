"""Evolution strategies: learn the real hyperparameters of any policy on whole episodes of random services.

:mod:`.config` has the configuration. :mod:`.drawing` and :mod:`.services` draw services, :mod:`.objective` compares a
policy with references on the same requests, :mod:`.strategies` proposes weights, :mod:`.run` runs the training, and
:mod:`.model` is the resulting file. Nothing here imports PyTorch.
"""
