"""The client of a Batuta server (`batuta.Client`) and of a Kubernetes cluster; the command line uses both."""
