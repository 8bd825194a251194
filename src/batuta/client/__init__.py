"""How programs talk to a server: `batuta.Client` and what it answers. The command line uses nothing else."""
