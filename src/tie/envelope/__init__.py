"""What device and CloudBoard share: HPKE (RFC 9180, base mode), wrapped keys, sealed chunks, framing.

`device` seals a request and opens its answer, `node` does the reverse; the rest are their parts. Knows nothing of
gRPC, sockets or what the payload means.
"""
