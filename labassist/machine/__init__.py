"""What the machine is doing: NVIDIA GPUs through NVML, the host and its container through psutil and cgroups."""
