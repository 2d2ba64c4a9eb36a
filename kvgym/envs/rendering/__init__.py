"""Pictures, texts and animations of episodes.

``recorder`` collects the history, ``scene`` is the content of a picture, ``frame`` draws it on a ``canvas`` of pixels,
and ``picture`` draws the whole episode with matplotlib; ``routing_recorder``, ``routing``, ``routing_frame`` and
``routing_picture`` do the same for clusters. ``episode`` plays episodes and writes files, for all environments that
implement :mod:`kvgym.envs.recordable`. May import tables of the environments, and :mod:`kvgym.report` and below;
environments import it. Frames need NumPy only; plotting libraries are imported when picture files are written.
"""
