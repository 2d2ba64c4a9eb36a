"""Pictures, texts and animations of episodes.

``recorder`` collects the history of a worker or a cluster, ``scene`` is the content of a picture and its text, and
``picture`` draws it on a ``canvas``. ``episode`` plays episodes and writes files, for all environments that implement
:mod:`kvgym.envs.recordable`. May import tables of the environments, and :mod:`kvgym.report` and below; environments
import it. Pillow is imported when a picture is drawn.
"""
