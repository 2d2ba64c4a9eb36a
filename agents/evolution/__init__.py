"""Evolution strategies: the real hyperparameters of any policy, learned on whole episodes of random services.

:mod:`.config` says what is trained, :mod:`.drawing` and :mod:`.services` draw the services, :mod:`.objective` measures
a policy against references on the same requests, :mod:`.strategies` proposes weights, :mod:`.run` puts them together,
and :mod:`.model` is the file that comes out. Nothing here imports PyTorch.
"""
