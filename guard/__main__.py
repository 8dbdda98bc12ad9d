"""``python -m guard`` is the same as ``guard``."""

from guard.cli import main

if __name__ == "__main__":
    main()
