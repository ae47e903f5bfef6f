"""A reference CloudBoard, so that a node can be run and driven by itself: cloudboardd, its helpers, key protection.

CloudBoard is the neighbour, not part of the engine: it sees ciphertext (cloudboardd), one request's plaintext
(a helper) or the node's private keys (key protection), and none of these processes sees what another one does.
"""
