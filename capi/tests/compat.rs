//! Programs that are written for NVSHMEM, on the `cpu` device: `tests/compat`, built against an
//! installation, of which they know the folder alone.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use api::launch::PeStatus;
use common::mpi::{MPICH_CXX, OPEN_MPI_CXX};

/// What `scripts/install` makes of the libraries that were built with this test: `NVSHMEM_HOME`.
fn home() -> &'static Path {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        // Tests may run in processes of their own, side by side. What ended ones have left goes.
        let prefix = common::scratch(&format!("installed-{}", std::process::id()));
        for left in std::fs::read_dir(prefix.parent().unwrap()).unwrap().map(Result::unwrap) {
            let name = left.file_name().into_string().unwrap();
            if name.strip_prefix("installed-").is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // Another test may have begun to do the same.
                let _ = std::fs::remove_dir_all(left.path());
            }
        }
        let script = common::manifest().join("../scripts/install");
        common::succeeds(Command::new(script).arg(&prefix).arg("--from").arg(common::library()));
        prefix.join("compat/nvshmem")
    })
}

fn sources() -> PathBuf {
    common::manifest().join("../tests/compat")
}

fn built(name: &str) -> PathBuf {
    let home = home();
    let program = home.join(name);
    common::succeeds(
        Command::new("c++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1"])
            .arg("-I")
            .arg(home.join("include"))
            .arg(sources().join(format!("{name}.cpp")))
            .arg("-L")
            .arg(home.join("lib"))
            .args(["-lnvshmem_host", &format!("-Wl,-rpath,{}", home.join("lib").display()), "-o"])
            .arg(&program),
    );
    program
}

/// How a program with these variables ends, the variables of OxSHMEM that it then has, and what it
/// prints on standard error.
fn with_variables(variables: &[(&str, &str)]) -> (bool, Vec<String>, String) {
    let mut command = Command::new(built("misuse"));
    command.arg("environment").env("OXSHMEM_DEVICE", "cpu").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    (output.status.success(), said, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What a program that goes wrong prints on standard error.
fn complaint(program: &Path, how: &str) -> String {
    let output = Command::new(program).arg(how).env("OXSHMEM_DEVICE", "cpu").output().unwrap();
    assert!(!output.status.success(), "{how}: {}", output.status);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn everything_that_the_host_can_call() {
    let program = built("host");
    for (transport, npes) in [("p2p", 1), ("p2p", 3), ("p2p", 6), ("ibgda", 2)] {
        common::job(&program, &[], npes, &[("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TRANSPORT", transport)]);
    }
}

/// In relocatable code the compiler keeps every function that is there, so there must be none that
/// a program does not call: nvcc and each load of the program would spend time on it.
#[test]
fn the_header_adds_no_code_that_a_program_does_not_call() {
    let Some(nvcc) = common::nvcc() else {
        println!("skipped: no nvcc (scripts/setup installs one)");
        return;
    };
    let scratch = common::scratch("header");
    let functions = |name: &str, kernel: &str| -> Vec<String> {
        let (source, ptx) = (scratch.join(format!("{name}.cu")), scratch.join(format!("{name}.ptx")));
        std::fs::write(&source, format!("#include <nvshmem.h>\n__global__ void kernel(int *at) {{ {kernel} }}\n"))
            .unwrap();
        common::succeeds(
            Command::new(&nvcc)
                .args(["-ptx", "-std=c++17", "-rdc=true", "-arch=sm_90", "-I"])
                .arg(common::manifest().join("compat/nvshmem/include"))
                .arg("-I")
                .arg(common::manifest().join("../device-kernels/include"))
                .arg("-o")
                .args([&ptx, &source]),
        );
        let text = std::fs::read_to_string(ptx).unwrap();
        text.lines().filter(|line| line.contains(".func")).map(str::to_owned).collect()
    };
    assert_eq!(functions("nothing", "*at = 1;"), [""; 0]);
    let of_quiet = functions("quiet", "nvshmem_quiet();");
    assert!(of_quiet.iter().any(|line| line.contains("network_quiet")), "{of_quiet:?}");
    assert!(!of_quiet.iter().any(|line| line.contains("ibrc_put")), "{of_quiet:?}");
}

/// Returns clang and the tools of LLVM beside it, of a release that knows the GPUs; why not,
/// otherwise.
fn clang() -> Result<[String; 3], String> {
    let major = |clang: &str| -> Option<u32> {
        let output = Command::new(clang).arg("-dumpversion").output().ok()?;
        String::from_utf8_lossy(&output.stdout).split('.').next()?.trim().parse().ok()
    };
    let suffixes = ["", "-21", "-20", "-19", "-18"];
    let found = suffixes.iter().find(|suffix| major(&format!("clang{suffix}")).is_some_and(|major| major >= 18));
    let suffix = found.ok_or("there is no clang 18 or later")?;
    let tools = ["clang", "llvm-link", "llc"].map(|tool| format!("{tool}{suffix}"));
    match tools.iter().find(|tool| !is_installed(tool)) {
        Some(missing) => Err(format!("{missing} is not installed")),
        None => Ok(tools),
    }
}

/// The device library as bitcode: a list of its names, since all of them take minutes, linked into
/// a kernel as compilers do that make kernels of bitcode.
#[test]
fn the_device_library_is_bitcode_that_links_into_a_kernel() {
    let (tools, nvcc) = match (clang(), common::nvcc()) {
        (Ok(tools), Some(nvcc)) => (tools, nvcc),
        (Err(reason), _) => return println!("skipped: {reason}"),
        (_, None) => return println!("skipped: no nvcc (scripts/setup installs one)"),
    };
    let scratch = common::scratch("bitcode");
    let file = |name: &str| scratch.join(name);
    let cuda = nvcc.parent().unwrap().parent().unwrap();
    for header in ["texture_fetch_functions.h", "curand_mtgp32_kernel.h"] {
        std::fs::write(file(header), "").unwrap();
    }
    std::fs::write(
        file("library.cu"),
        "#define OXSHMEM_NV_BITCODE 1\n#define OXSHMEM_MODULE_NAME nvshmem_device\n\
         #include <oxshmem_nvshmem/expand.h>\n#include <oxshmem_nvshmem/list_library.h>\n",
    )
    .unwrap();
    std::fs::write(
        file("kernel.cu"),
        "extern \"C\" __device__ int nvshmemx_putmem_signal_counted_nbi_block(void *, const void *, size_t, unsigned long *, int);\n\
         extern \"C\" __device__ void nvshmemx_signal_counted_wait_until(const unsigned long *, unsigned long);\n\
         extern \"C\" __global__ void counted(char *to, char *from, unsigned long *counter, int pe) {\n\
         nvshmemx_putmem_signal_counted_nbi_block(to, from, 64, counter, pe);\n\
         nvshmemx_signal_counted_wait_until(counter, 64);\n}\n",
    )
    .unwrap();
    for name in ["library", "kernel"] {
        common::succeeds(
            Command::new(&tools[0])
                .args(["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90", "-emit-llvm", "-c", "-O1"])
                .args(["-std=c++17", "-Wno-unknown-cuda-version", &format!("--cuda-path={}", cuda.display()), "-I"])
                .arg(&scratch)
                .arg("-I")
                .arg(common::manifest().join("compat/nvshmem/include"))
                .arg("-I")
                .arg(common::manifest().join("../device-kernels/include"))
                .args([
                    file(&format!("{name}.cu")).as_os_str(),
                    "-o".as_ref(),
                    file(&format!("{name}.bc")).as_os_str(),
                ]),
        );
    }
    let [linked, ptx, cubin] = ["linked.bc", "linked.ptx", "linked.cubin"].map(file);
    common::succeeds(Command::new(&tools[1]).args(["--only-needed", "-o"]).args([
        &linked,
        &file("kernel.bc"),
        &file("library.bc"),
    ]));
    common::succeeds(
        Command::new(&tools[2]).args(["-march=nvptx64", "-mcpu=sm_90", "-mattr=+ptx83", "-o"]).args([&ptx, &linked]),
    );
    common::succeeds(Command::new(cuda.join("bin/ptxas")).args(["-arch=sm_90", "-o"]).args([&cubin, &ptx]));
    let text = std::fs::read_to_string(&ptx).unwrap();
    // What nvshmemx_cumodule_init looks for.
    assert!(text.contains(".visible .const .align 128 .b8 oxshmem_state["), "{text}");
    assert!(text.contains(".visible .entry counted("));
}

#[test]
fn a_job_with_a_unique_id() {
    let program = built("unique_id");
    // With the values of NCCL's variable, which PyTorch copies.
    for interface in ["", "^docker0,lo", "=lo", "eth,lo"] {
        let mut command = Command::new(&program);
        command.env("OXSHMEM_DEVICE", "cpu").env("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", interface);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{interface}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Joins through a communicator of each MPI that is installed.
#[test]
fn a_job_with_an_mpi_communicator() {
    for mpi in [MPICH_CXX, OPEN_MPI_CXX].iter().filter(|mpi| mpi.is_installed()) {
        let program = common::scratch(mpi.compiler).join("nvshmem");
        let source = sources().join("mpi.cpp");
        mpi.compile(&source, &home().join("include"), (&home().join("lib"), "nvshmem_host"), &program);
        for variables in [&[][..], &[("NVSHMEM_BOOTSTRAP", "MPI")]] {
            let text = mpi.run(&program, variables);
            (0..3).for_each(|pe| assert!(text.contains(&format!("PE {pe} of 3 has joined through MPI")), "{text}"));
        }
    }
}

/// Plain init of a program that has called MPI_Init, with the functions of an MPI of one process,
/// in either binary interface. PMI is MPI's then, and another user of it fails.
#[test]
fn plain_init_joins_by_mpi_if_the_variable_says_so() {
    let program = built("misuse");
    let functions = "#include <stdint.h>\n#include <stdio.h>\n\
        int MPI_Initialized(int *flag) { *flag = 1; return 0; }\n\
        int MPI_Comm_rank(uint64_t comm, int *rank) { *rank = 0; return !IS_WORLD(comm); }\n\
        int MPI_Comm_size(uint64_t comm, int *size) { *size = 1; return !IS_WORLD(comm); }\n\
        int MPI_Bcast(void *buffer, int count, uint64_t type, int root, uint64_t comm) {\n\
        fprintf(stderr, \"a broadcast of %d bytes\\n\", count); return !IS_WORLD(comm); }\n";
    for (name, interface) in [
        ("mpich", "#define IS_WORLD(comm) ((comm) == 0x44000000)\n"),
        (
            "open_mpi",
            "char ompi_mpi_byte[8], ompi_mpi_comm_world[8];\n#define IS_WORLD(comm) ((comm) == (uint64_t)ompi_mpi_comm_world)\n",
        ),
    ] {
        let scratch = common::scratch(&format!("fake-{name}"));
        let (source, library) = (scratch.join("mpi.c"), scratch.join("libfake.so"));
        std::fs::write(&source, format!("{interface}{functions}")).unwrap();
        common::succeeds(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]));
        for (bootstrap, broadcasts) in [("MPI", true), ("mpi", true), ("PMI", false)] {
            let mut command = Command::new(&program);
            command.arg("none").env("OXSHMEM_DEVICE", "cpu").env("NVSHMEM_BOOTSTRAP", bootstrap);
            let output = command.env("LD_PRELOAD", &library).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {bootstrap}: {text}");
            assert_eq!(text.contains("a broadcast of 512 bytes"), broadcasts, "{name} {bootstrap}: {text}");
        }
    }
}

#[test]
fn misuse_is_one_line_that_says_what_to_do() {
    let program = built("misuse");
    for (how, said) in [
        ("finalize", "nvshmem_finalize: there is no PE; call it once for each nvshmem_init"),
        ("before-init", "nvshmem_barrier_all: there is no PE: call nvshmem_init first"),
        (
            "after-finalize",
            "nvshmem_int_p: there is no PE: call nvshmem_init first, and nothing after nvshmem_finalize",
        ),
        ("interface", "the program was compiled with nvshmem.h of interface 4, and libnvshmem_host has interface 3"),
        (
            "archive",
            "nvshmemx_collective_launch: libnvshmem_device has interface 4, and libnvshmem_host has interface 3; link both",
        ),
        ("buffer", "nvshmemx_buffer_unregister: no registered buffer begins at 0x"),
        ("heap-buffer", "nvshmemx_buffer_register: 4 bytes at 0x"),
        ("no-id", "nvshmemx_init_attr: the unique id is null; get one from nvshmemx_get_uniqueid"),
        ("mpi", "nvshmemx_init_attr: no MPI library is in this process"),
        (
            "other-pe",
            "nvshmemx_init_attr: this process is PE 0 of 1 since nvshmem_init, and stays that: a later init only counts, so \
             PE 3 of 8 is ignored; call nvshmem_finalize for each init",
        ),
        ("one-finalize-too-many", "nvshmem_finalize: there is no PE; call it once for each nvshmem_init"),
        ("freed", "nvshmem_int_p: "),
    ] {
        let text = complaint(&program, how);
        assert!(text.contains(said), "{how}: {text}");
    }
}

/// NVIDIA's library beside this one: something that has a name of it.
#[test]
fn both_libraries_in_one_process_are_refused() {
    let program = built("misuse");
    let scratch = common::scratch("both");
    let (source, library) = (scratch.join("theirs.c"), scratch.join("libtheirs.so"));
    std::fs::write(&source, "int nvshmemid_hostlib_init_attr(void) { return 0; }\n").unwrap();
    common::succeeds(Command::new("c++").args(["-shared", "-fPIC", "-xc", "-o"]).args([&library, &source]));
    let output =
        Command::new(&program).arg("none").env("OXSHMEM_DEVICE", "cpu").env("LD_PRELOAD", &library).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    let said = format!("nvshmem_init: NVIDIA's NVSHMEM ({}) is in this process beside OxSHMEM's", library.display());
    assert!(text.contains(&said), "{text}");
}

#[test]
fn the_status_of_a_global_exit_is_that_of_every_pe() {
    let program = built("exit");
    for (status, how) in [(7, "status"), (3, "none")] {
        let outcome = common::ended(&program, &[&status.to_string(), how], 3, &[("OXSHMEM_DEVICE", "cpu")]);
        let ends: Vec<PeStatus> = outcome.pes.iter().map(|pe| pe.status).collect();
        assert_eq!(ends, [PeStatus::Exited(status); 3], "{how}: {outcome:?}");
        assert_eq!(i32::from(outcome.exit_code()), status);
    }
}

#[test]
fn variables_are_mapped_or_named_in_one_warning() {
    let (good, _, text) = with_variables(&[("NVSHMEM_SYMMETRIC_SIZE", "1G"), ("NVSHMEM_BOOTSTRAP", "PMI")]);
    assert!(good && text.is_empty(), "{text}");
    let (good, _, text) = with_variables(&[("NVSHMEM_PROXY_REQUEST_BATCH_MAX", "8"), ("NVSHMEM_MAX_CTAS", "2")]);
    assert!(good && text.contains("these variables have no effect"), "{text}");
    assert!(text.contains("NVSHMEM_PROXY_REQUEST_BATCH_MAX") && text.contains("NVSHMEM_MAX_CTAS"), "{text}");
    // A value that is wrong is the runtime's error, with its variable.
    let (good, _, text) = with_variables(&[("NVSHMEM_IB_SL", "many")]);
    assert!(!good && text.contains("OXSHMEM_IB_SL"), "{text}");
}

/// What NVSHMEM's own documents allow, and what programs set, must not end init.
#[test]
fn values_that_nvshmem_allows_are_converted() {
    for (theirs, value, ours) in [
        ("DISABLE_P2P", "on", "DISABLE_P2P=1"),
        ("DISABLE_P2P", "Y", "DISABLE_P2P=1"),
        ("DISABLE_P2P", "no", "DISABLE_P2P=0"),
        ("DISABLE_P2P", "False", "DISABLE_P2P=0"),
        ("IB_ENABLE_IBGDA", "on", "NETWORK=ibgda"),
        ("IB_GID_INDEX", "3", "IB_GID_INDEX=3"),
        ("IB_TRAFFIC_CLASS", "0x68", "IB_TRAFFIC_CLASS=104"),
        ("IBGDA_NUM_RC_PER_PE", "24", "QPS_PER_PEER=24"),
        ("IBGDA_NUM_RC_PER_PE", "144", "QPS_PER_PEER=64"),
        ("MAX_TEAMS", "7", "MAX_TEAMS=7"),
        ("MAX_TEAMS", "2", "MAX_TEAMS=4"),
        ("MAX_TEAMS", "512", "MAX_TEAMS=256"),
        ("HCA_LIST", "mlx9_1:1,mlx9_2:2", "HCA_DEVICES=mlx9_1/1,mlx9_2/2"),
        ("HCA_LIST", "=mlx9_0,,mlx9_1,", "HCA_DEVICES=mlx9_0,mlx9_1"),
        ("HCA_LIST", "^=mlx9_0,mlx9_1", "HCA_DEVICES=^mlx9_0,mlx9_1"),
        ("HCA_PE_MAPPING", "mlx9_0:1:2,mlx9_0:2:2,mlx9_0:1:1", "HCA_DEVICES=mlx9_0/1,mlx9_0/2"),
    ] {
        let (good, said, text) = with_variables(&[(&format!("NVSHMEM_{theirs}"), value)]);
        assert!(
            good && text.is_empty() && said.contains(&format!("OXSHMEM_{ours}")),
            "{theirs}={value}: {said:?} {text}"
        );
    }
    // They ask for what is the default.
    for (theirs, value, ours) in [
        ("IB_GID_INDEX", "-1", "IB_GID_INDEX"),
        ("IBGDA_NUM_RC_PER_PE", "0", "QPS_PER_PEER"),
        ("MAX_TEAMS", "-1", "MAX_TEAMS"),
    ] {
        let (good, said, text) = with_variables(&[(&format!("NVSHMEM_{theirs}"), value)]);
        let is_set = said.iter().any(|line| line.starts_with(&format!("OXSHMEM_{ours}=")));
        assert!(good && text.is_empty() && !is_set, "{theirs}={value}: {said:?} {text}");
    }
}

/// The heap grows to what a GPU has, if nothing is said, and to more if that is said.
#[test]
fn the_heap_has_the_size_that_programs_take_for_granted() {
    for (variables, heap_max) in [
        (&[][..], "131072M"),
        (&[("NVSHMEM_SYMMETRIC_SIZE", "1G")], "131072M"),
        (&[("NVSHMEM_MAX_MEMORY_PER_GPU", "137438953472")], "131328M"),
        (&[("NVSHMEM_SYMMETRIC_SIZE", "140.5G"), ("NVSHMEM_MAX_MEMORY_PER_GPU", "200g")], "205056M"),
        (&[("NVSHMEM_SYMMETRIC_SIZE", "300G"), ("NVSHMEM_MAX_MEMORY_PER_GPU", "200G")], "307456M"),
        (&[("NVSHMEM_MAX_MEMORY_PER_GPU", "2T")], "524288M"),
        (&[("NVSHMEM_MAX_MEMORY_PER_GPU", "200G"), ("OXSHMEM_HEAP_MAX", "1G")], "1G"),
    ] {
        let (good, said, text) = with_variables(variables);
        assert!(good && text.is_empty(), "{variables:?}: {text}");
        assert!(said.contains(&format!("OXSHMEM_HEAP_MAX={heap_max}")), "{variables:?}: {said:?}");
    }
    for value in ["much", "-1G", "nan", "1X"] {
        let (good, _, text) = with_variables(&[("NVSHMEM_SYMMETRIC_SIZE", value)]);
        assert!(!good && text.contains("OXSHMEM_HEAP_MAX"), "{value}: {text}");
    }
}

#[test]
fn devices_that_are_excluded_or_mapped_are_so_here() {
    let mapped = [("NVSHMEM_HCA_PE_MAPPING", "mlx9_0:1:2,mlx9_1:2"), ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1")];
    let (good, said, text) = with_variables(&mapped);
    assert!(good && text.is_empty(), "{text}");
    assert!(said.contains(&"OXSHMEM_HCA_DEVICES=0=mlx9_0/1,1=mlx9_0/1,2=mlx9_1/2".to_owned()), "{said:?}");
    let (good, said, text) = with_variables(&[("NVSHMEM_HCA_LIST", "^mlx9_0:1,mlx9_1:2")]);
    assert!(good && said.contains(&"OXSHMEM_HCA_DEVICES=^mlx9_0,mlx9_1".to_owned()), "{said:?}");
    assert!(text.contains("NVSHMEM_HCA_LIST=^mlx9_0:1,mlx9_1:2 excludes these devices with all their ports"), "{text}");
    // OxSHMEM's own variables win, even where the two would contradict each other.
    let own = [
        ("NVSHMEM_HCA_LIST", "mlx9_0"),
        ("NVSHMEM_MAX_TEAMS", "64"),
        ("OXSHMEM_HCA", "soft"),
        ("OXSHMEM_MAX_TEAMS", "9"),
    ];
    let (good, said, text) = with_variables(&own);
    assert!(good && text.is_empty() && said.contains(&"OXSHMEM_MAX_TEAMS=9".to_owned()), "{said:?} {text}");
    assert!(!said.iter().any(|line| line.starts_with("OXSHMEM_HCA_DEVICES")), "{said:?}");
}

fn is_installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: there is no {tool}");
    }
    found
}

fn ring(program: &Path) {
    let said = common::job(program, &[] as &[&OsStr], 2, &[("OXSHMEM_DEVICE", "cpu")]);
    assert!(said[0].contains("PE 0 got 1") && said[1].contains("PE 1 got 0"), "{said:?}");
}

#[test]
fn a_makefile_needs_the_folder_alone() {
    let out = common::scratch("make-project");
    let project = sources().join("make-project");
    common::succeeds(
        Command::new("make").arg("-B").arg("-C").arg(project).env("NVSHMEM_HOME", home()).env("OUT", &out),
    );
    ring(&out.join("ring"));
}

#[test]
fn a_cmake_project_needs_the_folder_alone() {
    if !is_installed("cmake") {
        return;
    }
    let out = common::scratch("cmake-project");
    let project = sources().join("cmake-project");
    let configured = ["-S", project.to_str().unwrap(), "-B", out.to_str().unwrap()];
    common::succeeds(Command::new("cmake").args(configured).env("NVSHMEM_HOME", home()));
    common::succeeds(Command::new("cmake").arg("--build").arg(&out));
    ring(&out.join("ring"));
}
