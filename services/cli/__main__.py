"""`python -m services.cli`: the `hindcast` command."""

from services.cli.main import main

main()
