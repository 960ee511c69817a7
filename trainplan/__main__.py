"""`python -m trainplan` runs the command."""

from trainplan.command import main

if __name__ == "__main__":
    main()
