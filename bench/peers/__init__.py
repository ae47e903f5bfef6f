"""The other engines of `bench/engine.py`: each in a process of its own, in an environment of its own.

`remote` starts and asks one; `serving` is what runs in it, with `llama` or `openvino`.
"""
