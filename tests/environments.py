"""Variables of the environment as launchers and schedulers set them."""

from __future__ import annotations

# What Slurm 22.05 exports in a job; values of a job of two nodes.
ALLOCATION = {
    "PATH": "/usr/bin",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    "SLURM_CLUSTER_NAME": "test",
}
# In the batch script itself Slurm also speaks as if it were a task of a step.
SBATCH = ALLOCATION | {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
    "SLURM_TASK_PID": "1234",
    "SLURMD_NODENAME": "n1",
    "ENVIRONMENT": "BATCH",
}
STEP = SBATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_SRUN_COMM_HOST": "10.0.0.1",
}
ONE_TASK = STEP | {
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_PTY_PORT": "40001",
}
PMI2 = {"PMI_FD": "12", "PMI_JOBID": "4711.0", "PMI_RANK": "3", "PMI_SIZE": "4"}
PMIX = {
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "slurm.pmix.4711.0",
    "PMIX_SERVER_URI41": "pmix-server.77;tcp4://127.0.0.1:4000",
    "PMIX_SECURITY_MODE": "munge,native",
}
HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "4",
    "MPI_LOCALRANKID": "3",
    "PMI_FD": "9",
    "PMI_HOSTNAME": "n1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
}
OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-n1-55@1",
    "PRTE_LAUNCHED": "1",
    "PRTE_MCA_oversubscribe": "1",
}
LAPTOP = {"PATH": "/usr/bin", "HOME": "/home/me"}
PBS = {"PBS_JOBID": "7.head", "PBS_NODEFILE": "/var/spool/pbs/aux/7.head"}
# mpiexec starts its proxies with srun: one task a node.
HYDRA_PROXY = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
# LaunchParameters=use_interactive_step: the shell of salloc is a step of one task.
INTERACTIVE = ONE_TASK | {"SLURM_STEP_ID": "4294967290", "SLURM_STEPID": "4294967290"}
