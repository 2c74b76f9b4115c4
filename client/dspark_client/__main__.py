"""`python -m dspark_client`: the `dspark` command where it is not installed."""

from dspark_client.cli import main

main()
