"""The job controller: what to do next with one job, decided once for every backend."""
