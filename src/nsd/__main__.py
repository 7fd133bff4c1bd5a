"""`python -m nsd` is `nsd`."""

from nsd.cli import main

if __name__ == "__main__":
    main()
