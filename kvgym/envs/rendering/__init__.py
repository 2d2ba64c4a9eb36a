"""Pictures, texts and animations of episodes.

``recorder`` keeps what has happened, ``scene`` lays it out, ``frame`` draws a frame, ``picture`` the whole episode,
``routing`` does the same for clusters. Plotting libraries are imported only when something is drawn.
"""
