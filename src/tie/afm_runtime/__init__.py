"""The AFM Runtime: Triton's Python backend with the engine loop, and the host that starts and watches Triton."""
