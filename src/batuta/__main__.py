"""`python -m batuta` is the same as `batuta`."""

from batuta.cli.main import run

if __name__ == "__main__":
    run()
