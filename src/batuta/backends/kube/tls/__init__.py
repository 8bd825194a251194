"""TLS of the operator's API: the certificate that all operators of a release show, and whom they believe."""
