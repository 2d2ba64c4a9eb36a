"""Pictures, texts and animations of episodes.

``recorder`` keeps what has happened, ``scene`` lays it out, ``frame`` draws a frame, ``picture`` the whole episode;
``routing_recorder``, ``routing`` and ``routing_picture`` do the same for clusters. ``episode`` plays and writes files
for both, through :mod:`kvgym.envs.recordable`. May import tables of the environments it draws, and :mod:`kvgym.report`
and what is below it; environments import it, and it imports plotting libraries, only when something is drawn.
"""
