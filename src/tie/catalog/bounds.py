"""What Bones and the processes around it are dimensioned for; a number beyond these is a mistake or an attack."""

from typing import Final

MAX_HIDDEN: Final = 65_536
MAX_INTERMEDIATE: Final = 524_288
MAX_LAYERS: Final = 512
MAX_HEADS: Final = 1_024
MAX_HEAD_DIM: Final = 1_024
MAX_VOCAB: Final = 2**22
MAX_CONTEXT: Final = 2**24
MAX_EOS: Final = 32
MAX_THETA: Final = 1e12
MAX_FACTOR: Final = 1e4
MAX_KINDS: Final = 8
MIN_EPS, MAX_EPS = 1e-12, 1e-1
MIN_SCALE, MAX_SCALE = 1e-6, 1e6
"""Of what multiplies embedded rows or attention scores, and of the softcaps."""
