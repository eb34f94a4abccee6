//! The shmem_* performance tests of OxSHMEM.
