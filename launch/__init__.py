"""The command line, the gateway and the supervision of worker processes.
The only package that sees argv, the environment and configuration files."""
