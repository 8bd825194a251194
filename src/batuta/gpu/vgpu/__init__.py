"""Virtual GPUs: a file, and libraries that make CUDA programs take it for GPUs. They compute nothing."""
