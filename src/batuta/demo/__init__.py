"""What `batuta up --demo` runs: a small elastic trainer of our own, and jobs that arrive over two minutes.

The trainer runs anywhere: `python -m batuta.demo.trainer --help`. It needs NumPy and `batuta.sdk`, no GPU.
"""
