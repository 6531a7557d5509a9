"""The console script, also as `python -m mapo`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported exits quietly, too."""
    try:
        from mapo.cli import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
