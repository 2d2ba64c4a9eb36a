"""Pictures, texts and animations of episodes.

``recorder`` keeps what has happened, ``scene`` lays it out, ``frame`` draws it on a ``canvas`` of pixels, ``picture``
the whole episode with matplotlib; ``routing_recorder``, ``routing``, ``routing_frame`` and ``routing_picture`` do the
same for clusters. ``episode`` plays and writes files for both, through :mod:`kvgym.envs.recordable`. May import tables
of the environments it draws, and :mod:`kvgym.report` and what is below it; environments import it. Frames need NumPy
only; plotting libraries are imported when files of pictures are written.
"""
