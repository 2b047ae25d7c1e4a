"""What runs in every MPI rank."""
