"""``python -m fedsdg`` is the console command ``fedsdg``."""

from fedsdg.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
