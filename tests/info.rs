//! `oxshmem-info` as people run it, on machines that lack one thing or another.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_oxshmem-info");

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OXSHMEM_") {
            command.env_remove(name);
        }
    }
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the JSON report of a doctor that ended as its `ready` says, whose parts are all there.
fn doctor(command: &mut Command) -> Value {
    let output = command.args(["doctor", "--json"]).output().unwrap();
    let text = stdout(&output);
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    });
    let ready = report["ready"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!ready)), "{text}");
    assert!(report["version"].is_string() && report["seconds"].is_f64());
    let findings = report["findings"].as_array().unwrap();
    for finding in findings {
        let result = finding["result"].as_str().unwrap();
        assert!(["ok", "warn", "fail", "skip"].contains(&result), "{finding}");
        let reason = finding["reason"].as_str().unwrap();
        assert!(!reason.is_empty() && !reason.contains('\n'), "{finding}");
        assert!(!reason.contains("panicked"), "{finding}");
        assert_eq!(finding["remedy"].is_string(), ["warn", "fail"].contains(&result), "{finding}");
    }
    for probe in [
        "configuration",
        "system.sharing",
        "system.memlock",
        "container.kind",
        "gpu.bus",
        "rdma.bus",
        "rdma.libibverbs",
        "rdma.libmlx5",
    ] {
        assert!(findings.iter().any(|finding| finding["probe"] == probe), "no {probe}: {text}");
    }
    assert_eq!(findings.iter().all(|finding| finding["result"] != "fail"), ready);
    for path in report["paths"].as_array().unwrap() {
        assert!(["ready", "missing", "unconfirmed"].contains(&path["state"].as_str().unwrap()), "{path}");
    }
    report
}

fn finding<'a>(report: &'a Value, probe: &str) -> &'a Value {
    report["findings"].as_array().unwrap().iter().find(|finding| finding["probe"] == probe).unwrap_or(&Value::Null)
}

/// A folder that is gone when the test is.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("oxshmem-info-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_machine_as_it_is() {
    let report = doctor(&mut program(&[]));
    assert_eq!(finding(&report, "configuration")["result"], "ok");
    assert_eq!(report["paths"][0]["state"], "ready", "{report:#}");
    println!("doctor took {} s", report["seconds"]);
    // The same for people, with a line that says how it ended.
    let output = program(&["doctor"]).output().unwrap();
    let text = stdout(&output);
    let verdict = text.lines().last().unwrap();
    assert!(verdict.starts_with(if output.status.success() { "ready: " } else { "NOT READY: " }), "{text}");
}

#[test]
fn what_the_configuration_requires_decides() {
    // What no machine has.
    let report = doctor(program(&[]).env("OXSHMEM_HCA", "verbs:no_such_card"));
    let selected = finding(&report, "rdma.selection");
    assert_eq!(selected["result"], "fail");
    assert!(selected["reason"].as_str().unwrap().contains("there is no RDMA device no_such_card"), "{selected}");
    let report = doctor(program(&[]).env("OXSHMEM_HCA", "mlx5").env("OXSHMEM_HCA_DEVICES", "mlx5_77"));
    assert_eq!(report["ready"], false);
    // Only the CPU is requested.
    let report = doctor(program(&[]).env("OXSHMEM_HCA", "soft").env("OXSHMEM_DEVICE", "cpu"));
    assert_eq!(report["ready"], true, "{report:#}");
}

#[test]
fn wrong_variables_are_findings_of_the_doctor_and_errors_elsewhere() {
    for (vars, words) in [
        (vec![("OXSHMEM_QP_DEPHT", "1")], "did you mean OXSHMEM_QP_DEPTH?"),
        (
            vec![("OXSHMEM_HCA", "mlx5:mlx5_0"), ("OXSHMEM_HCA_DEVICES", "mlx5_1")],
            "contradicts OXSHMEM_HCA_DEVICES=mlx5_1",
        ),
        (vec![("OXSHMEM_HCA_DEVICES", "0=")], "OXSHMEM_HCA_DEVICES=0=: expected a list"),
        // A file that is no file of oxshmem-tune.
        (vec![("OXSHMEM_TUNING", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))], "expected 'oxshmem-tuning 1'"),
    ] {
        let report = doctor(program(&[]).envs(vars.clone()));
        let configuration = finding(&report, "configuration");
        assert_eq!(configuration["result"], "fail");
        assert!(configuration["reason"].as_str().unwrap().contains(words), "{configuration}");
        let output = program(&[]).envs(vars).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
    assert_eq!(program(&["--deadline", "0"]).output().unwrap().status.code(), Some(2));
    assert_eq!(program(&["nonsense"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn libraries_that_are_none_are_findings() {
    let folder = Folder::new("libraries");
    let system = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"];
    let other = system.iter().find(|path| Path::new(path).exists());
    // Text; then a library of another kind.
    for (name, wrong) in [("text", None), ("other", other)] {
        if name == "other" && wrong.is_none() {
            println!("skipped: no libm where it usually is");
            continue;
        }
        for library in ["libibverbs.so.1", "libmlx5.so.1", "libcuda.so", "libcuda.so.1"] {
            let at = folder.0.join(library);
            match wrong {
                None => std::fs::write(&at, "not a library\n").unwrap(),
                Some(path) => drop(std::fs::copy(path, &at).unwrap()),
            }
        }
        let report = doctor(program(&[]).env("LD_LIBRARY_PATH", &folder.0).env("OXSHMEM_HCA", "mlx5"));
        for probe in ["rdma.libibverbs", "rdma.libmlx5"] {
            let said = finding(&report, probe);
            assert_eq!(said["result"], "fail", "{name}: {said}");
            let words = if wrong.is_none() { "cannot be loaded" } else { "has no" };
            assert!(said["reason"].as_str().unwrap().contains(words), "{name}: {said}");
        }
        if wrong.is_some() {
            let said = finding(&report, "gpu.libcuda");
            assert!(said["reason"].as_str().unwrap().contains("libcuda lacks cuDriverGetVersion"), "{said}");
            // A PE says it too, and goes on with the other device.
            let mut job = program(&["paths", "-n", "1", "--json"]);
            let job = job.env("LD_LIBRARY_PATH", &folder.0).env("OXSHMEM_HEAP_MAX", "64M").output().unwrap();
            let warned = String::from_utf8_lossy(&job.stderr);
            assert!(job.status.success() && warned.contains("not the NVIDIA driver"), "{warned}");
        }
    }
}

/// Builds a libcuda that serves this release of CUDA and has no GPU. `false`: there is no compiler.
fn fake_driver(folder: &Folder, release: i32) -> bool {
    let source = folder.0.join("driver.c");
    let text = format!(
        "int cuDriverGetVersion(int *version) {{ *version = {release}; return 0; }}\n\
         int cuInit(unsigned flags) {{ return flags != 0; }}\n\
         int cuDeviceGetCount(int *count) {{ *count = 0; return 0; }}\n\
         int cuCtxGetCurrent(void **context) {{ *context = 0; return 0; }}\n\
         int cuGetErrorName(int error, const char **name) {{ *name = \"fake\"; return 0; }}\n\
         int cuGetErrorString(int error, const char **text) {{ *text = \"fake\"; return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    ["libcuda.so.1", "libcuda.so"].iter().all(|library| {
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(folder.0.join(library)).arg(&source).status();
        built.is_ok_and(|status| status.success())
    })
}

#[test]
fn drivers_that_are_too_old_are_refused_in_one_line_and_newer_ones_are_not() {
    let folder = Folder::new("drivers");
    let oldest = oxshmem::device::cuda::OLDEST_DRIVER;
    for (release, is_too_old) in [(oldest - 10, true), (11080, true), (oldest, false), (99090, false)] {
        if !fake_driver(&folder, release) {
            println!("skipped: no C compiler");
            return;
        }
        let named = format!("{}.{}", release / 1000, release % 1000 / 10);
        let refusal = format!(
            "the NVIDIA driver supports CUDA {named}, but {}.{} is needed: update the driver",
            oldest / 1000,
            oldest % 1000 / 10
        );
        let mut job = program(&["paths", "-n", "1"]);
        let job = job.env("LD_LIBRARY_PATH", &folder.0).env("OXSHMEM_DEVICE", "cuda").output().unwrap();
        let said = String::from_utf8_lossy(&job.stderr).into_owned();
        assert!(!job.status.success(), "there is no GPU: {said}");
        assert_eq!(said.matches(&refusal).count(), usize::from(is_too_old), "{named}: {said}");
        assert_eq!(said.lines().filter(|line| line.contains("oxshmem-info:")).count(), 1, "{named}: {said}");
    }
}

#[test]
fn libraries_that_crash_or_hang_are_findings() {
    let folder = Folder::new("crash");
    let build = |body: &str, library: &str| {
        let source = folder.0.join("library.c");
        std::fs::write(&source, format!("#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void begin(void) {{ {body} }}\n")).unwrap();
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(folder.0.join(library)).arg(&source).status();
        built.is_ok_and(|status| status.success())
    };
    if !build("abort();", "libmlx5.so.1") || !build("for (;;) sleep(1);", "libibverbs.so.1") {
        println!("skipped: no C compiler");
        return;
    }
    let mut command = program(&["--deadline", "0.3"]);
    let report = doctor(command.env("LD_LIBRARY_PATH", &folder.0).env("OXSHMEM_HCA", "mlx5"));
    let said = finding(&report, "rdma.libibverbs")["reason"].as_str().unwrap();
    assert!(said.contains("no answer after 0.3 s"), "{said}");
    let said = finding(&report, "rdma.libmlx5")["reason"].as_str().unwrap();
    assert!(said.contains("signal 6"), "{said}");
}

/// Returns what the doctor says of a card of the stand-in for rdma-core, which has the lies told to
/// it; the functions are missing in its libraries.
fn stand_in(folder: &Folder, lies: &str, missing: &[&str]) -> Value {
    oxshmem_stand_in::install(&folder.0, missing).unwrap();
    let mut command = program(&[]);
    // Its card has no trace in sysfs, so it is named.
    let command = command.env("OXSHMEM_HCA", "mlx5:mlx5_0").env(oxshmem_stand_in::VARIABLE, lies);
    doctor(command.env("LD_LIBRARY_PATH", &folder.0))
}

#[test]
fn a_card_is_used_as_jobs_use_it() {
    let folder = Folder::new("card");
    let report = stand_in(&folder, "", &[]);
    for (probe, words) in [
        ("rdma.libibverbs", "devices mlx5_0"),
        ("rdma.libmlx5", "libmlx5.so.1"),
        ("rdma.devx", "commands reach the card: port 1"),
        ("rdma.uar", "a page of doorbell registers"),
        ("rdma.host-memory", "by address"),
    ] {
        let said = finding(&report, probe);
        assert_eq!(said["result"], "ok", "{said}");
        assert!(said["reason"].as_str().unwrap().contains(words), "{said}");
    }
    let said = finding(&stand_in(&folder, "port:infiniband=1", &[]), "rdma.devx")["reason"].to_string();
    assert!(said.contains("LID 0x") && said.contains("partition key 0xffff, GID fe80::"), "{said}");
    for (lies, missing, probe, words) in [
        // EOPNOTSUPP, EACCES, ENOMEM, EFAULT.
        ("errno:mlx5dv_open_device=95", "", "rdma.devx", "does not give this user a DevX context"),
        ("errno:mlx5dv_open_device=13", "", "rdma.devx", "cannot be opened"),
        ("port:state=1", "", "rdma.devx", "is DOWN"),
        ("port:infiniband=1,port:lid=0", "", "rdma.devx", "has LID 0x0"),
        ("device:none=1", "", "rdma.devx", "no RDMA device"),
        ("device:foreign=1", "", "rdma.devx", "is not a ConnectX card that libmlx5 drives"),
        ("status:QUERY_HCA_CAP=0x3", "", "rdma.devx", "QUERY_HCA_CAP failed"),
        ("errno:mlx5dv_devx_umem_reg_ex.address=14", "", "rdma.host-memory", "cannot be registered"),
        ("", "mlx5dv_devx_alloc_uar", "rdma.libmlx5", "has no mlx5dv_devx_alloc_uar"),
    ] {
        let missing: &[&str] = if missing.is_empty() { &[] } else { &[missing] };
        let report = stand_in(&folder, lies, missing);
        let said = finding(&report, probe);
        assert_eq!(said["result"], "fail", "{lies}: {said}");
        assert!(said["reason"].as_str().unwrap().contains(words), "{lies}: {said}");
    }
}

#[test]
fn an_unprivileged_user_with_little_memory_to_lock_gets_the_same_answers() {
    let mut command = program(&[]);
    let folder = Folder::new("user");
    if geteuid().is_root() {
        // A place where no user may look into the build's folders.
        let copy = folder.0.join("oxshmem-info");
        std::fs::copy(PROGRAM, &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut unprivileged = Command::new(copy);
        unprivileged.uid(65534).gid(65534).current_dir("/");
        command = unprivileged;
    }
    // SAFETY: a system call, and nothing else, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = Some(64 << 10);
            Ok(setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })?)
        });
    }
    let report = doctor(&mut command);
    let limit = finding(&report, "system.memlock")["reason"].as_str().unwrap();
    assert!(limit.contains("may lock 64 KiB"), "{limit}");
    assert_eq!(report["paths"][0]["state"], "ready", "{report:#}");
}

#[test]
fn a_machine_that_hides_sys_and_dev_is_survived() {
    let script = format!("mount -t tmpfs none /sys && mount -t tmpfs none /dev/shm && exec {PROGRAM} \"$@\"");
    let tried = Command::new("unshare").args(["-m", "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("skipped: this user may not make mount namespaces");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, "sh"]).env("OXSHMEM_HCA", "mlx5");
    let report = doctor(&mut command);
    assert_eq!(finding(&report, "rdma.devices")["result"], "fail");
    assert_eq!(report["paths"][0]["state"], "ready", "{report:#}");
}

#[test]
fn the_configuration_is_shown_with_its_origins() {
    let output = program(&["--json"]).env("OXSHMEM_HEAP_CHUNK", "2M").output().unwrap();
    let about: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(about["build"]["abi_version"].as_u64().unwrap() > 0);
    let setting = |name: &str| {
        let all = about["configuration"].as_array().unwrap();
        all.iter().find(|setting| setting["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (setting("OXSHMEM_HEAP_CHUNK")["value"].as_str(), setting("OXSHMEM_HEAP_CHUNK")["origin"].as_str()),
        (Some("2M"), Some("environment"))
    );
    assert_eq!(setting("OXSHMEM_HEAP_MAX")["origin"], "default");
    let depth = setting("OXSHMEM_QP_DEPTH");
    assert!(depth["origin"] == "derived" && depth["note"].as_str().unwrap().contains("8192 with 2 PEs"), "{depth}");
    let gpus = about["devices"]["gpus"].as_array().unwrap().len();
    assert_eq!(about["devices"]["no_gpu"].is_string(), gpus == 0);
    let text = stdout(&program(&[]).output().unwrap());
    assert!(text.contains("Configuration:") && text.contains("GPUs:") && text.contains("RDMA devices:"), "{text}");
}

#[test]
fn the_algorithms_of_collectives_are_shown() {
    let own = stdout(&program(&[]).output().unwrap());
    assert!(own.contains("Collectives (the library's choice; oxshmem-tune measures this machine):"), "{own}");
    for line in [
        "  4 PEs on 2 nodes  one block           on streams and from the host, [blocks]\n",
        "    fcollect        levels              levels[1-8]\n",
        "    reduce          packets:8K/push     packets:512K[1-72]/oneshot:2097151[64-72]/push[72]\n",
    ] {
        assert!(own.contains(line), "no `{line}` in\n{own}");
    }
    let file = std::env::temp_dir().join(format!("oxshmem-info-tuning-{}", std::process::id()));
    std::fs::write(&file, "oxshmem-tuning 1\n1 4 fcollect push\n2 4 reduce tree:64/levels\n").unwrap();
    let mut command = program(&["--json"]);
    let output = command.env("OXSHMEM_TUNING", &file).env("OXSHMEM_COLLECTIVES", "alltoall=push").output().unwrap();
    let about: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let shown = &about["collectives"];
    assert_eq!(shown["lines"], serde_json::json!(["1 4 fcollect push", "2 4 reduce tree:64/levels"]));
    let of = |nodes: u64, n_pes: u64| {
        let teams = shown["teams"].as_array().unwrap().iter();
        let found = teams.filter(|team| (team["nodes"].as_u64(), team["n_pes"].as_u64()) == (Some(nodes), Some(n_pes)));
        found.map(|team| team["algorithms"].as_str().unwrap().to_owned()).next().unwrap()
    };
    assert!(of(1, 4).contains("fcollect=push,alltoall=push,"), "{}", of(1, 4));
    let streams = |n_pes| {
        shown["teams"].as_array().unwrap().iter().find(|team| team["n_pes"] == n_pes).unwrap()["streams"].to_string()
    };
    assert!(streams(4).contains("fcollect=push[1-72],alltoall=push[1-72],"), "{}", streams(4));
    assert!(
        streams(8).contains("fcollect=packets:") && streams(8).contains("/copy,alltoall=push[1-72],"),
        "{}",
        streams(8)
    );
    assert!(of(1, 8).contains("fcollect=packets:"), "{}", of(1, 8));
    assert!(of(2, 4).contains("reduce=tree:64/levels") && of(2, 4).contains("fcollect=levels"), "{}", of(2, 4));
    std::fs::write(&file, "oxshmem-tuning 1\n1 4 fcollect tree\n").unwrap();
    let output = program(&[]).env("OXSHMEM_TUNING", &file).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(&format!("OXSHMEM_TUNING={}: line 2: 'fcollect tree'", file.display())), "{error}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn paths_of_a_job_are_shown() {
    for (transport, path, hca) in
        [("auto", "p2p", Value::Null), ("ibgda", "ibgda", "soft".into()), ("ibrc", "ibrc", "soft".into())]
    {
        let output = program(&["paths", "--npes", "2", "--json"])
            .envs([("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TRANSPORT", transport), ("OXSHMEM_HEAP_MAX", "64M")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let matrix: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(matrix["paths"], serde_json::json!([["own", path], [path, "own"]]));
        for pe in matrix["pes"].as_array().unwrap() {
            assert_eq!((pe["device"].as_str(), &pe["hca"]), (Some("cpu"), &hca));
        }
    }
    // What was tried to use a card is shown too.
    let folder = Folder::new("paths");
    oxshmem_stand_in::install(&folder.0, &[]).unwrap();
    let output = program(&["paths", "--npes", "2", "--json"])
        .envs([("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TRANSPORT", "ibgda"), ("OXSHMEM_HCA", "mlx5:mlx5_0")])
        .env("OXSHMEM_HEAP_MAX", "64M")
        .env("LD_LIBRARY_PATH", &folder.0)
        .output()
        .unwrap();
    let matrix: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(matrix["pes"][0]["hca"], "mlx5", "{}", String::from_utf8_lossy(&output.stderr));
    let attempts = matrix["attempts"].as_array().unwrap();
    assert!(attempts.contains(&"doorbells rung by device code: in use".into()), "{attempts:?}");
    let output = program(&["paths", "-n", "2"]).env("OXSHMEM_DEVICE", "cpu").output().unwrap();
    assert!(stdout(&output).contains("to PE      0      1"), "{}", stdout(&output));
    let output = program(&["paths"])
        .env("OXSHMEM_HCA", "verbs:no_such_card")
        .env("OXSHMEM_TRANSPORT", "ibrc")
        .env("OXSHMEM_DEVICE", "cpu")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for args in [&[][..], &["--json"], &["doctor"], &["paths", "-n", "2"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program(args).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("No space left on device"), "{args:?}: {error}");
        // A reader that has seen enough is not an error.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program(args).stdout(writer).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("standard output"), "{args:?}: {error}");
    }
}

#[test]
fn the_launcher_is_shown_with_its_variables() {
    let mut command = program(&["launch", "--json"]);
    let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
    command.envs(vars).envs([("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500"), ("OXSHMEM_LAUNCHER", "torchrun")]);
    let shown: Value = serde_json::from_str(&stdout(&command.output().unwrap())).unwrap();
    assert_eq!((&shown["launcher"], &shown["local_rank"]), (&"torchrun".into(), &1.into()), "{shown}");
    assert_eq!(shown["variables"]["torchrun"]["MASTER_ADDR"], "localhost");

    let output = program(&["launch"]).envs([("OXSHMEM_LAUNCHER", "torchrun")]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("error: launcher torchrun: OXSHMEM_LAUNCHER=torchrun, but RANK"), "{output:?}");
}

#[test]
fn memory_of_each_pe_is_shown_by_kind() {
    let shown = |arguments: &[&str]| {
        let mut command = program(arguments);
        let command = command.env("OXSHMEM_DEVICE", "cpu").env("OXSHMEM_TRANSPORT", "ibrc").env("OXSHMEM_HCA", "soft");
        let output = command.env("OXSHMEM_HEAP_MAX", "64M").env("OXSHMEM_HEAP_CHUNK", "4M").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        stdout(&output)
    };
    let report: Value = serde_json::from_str(&shown(&["memory", "-n", "2", "--json"])).unwrap();
    let pes = report["pes"].as_array().unwrap();
    assert_eq!(pes.len(), 2, "{report:#}");
    for pe in pes {
        let of = |kind: &str, place: &str| pe[kind][place].as_u64().unwrap_or_else(|| panic!("{kind}: {pe:#}"));
        // What has not grown is one chunk, and teams take a part of it.
        assert!((1..4 << 20).contains(&of("heap", "device")), "{pe:#}");
        assert!(of("teams", "device") > 0 && of("rings", "host") > 0 && of("engine", "host") > 0, "{pe:#}");
        assert_eq!(of("staging", "device"), 1 << 20);
        assert_eq!(pe.as_object().unwrap().len(), 10);
    }
    let text = shown(&["memory", "-n", "2"]);
    for part in ["landing", "PE 0 ", "PE 1 "] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
}

#[test]
fn traces_are_summarised_and_put_together() {
    let folder = Folder::new("traces");
    let trace = |args: &[&str]| {
        let mut command = program(&["trace"]);
        command.args(args).current_dir(&folder.0).output().unwrap()
    };
    let refused = |args: &[&str], wanted: &str| {
        let output = trace(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
    };
    refused(&[], "oxshmem-profile cannot be read");
    std::fs::create_dir_all(folder.0.join("empty")).unwrap();
    refused(&["empty"], "has no file trace-PE.json; run the program with OXSHMEM_PROFILE=trace");
    for (name, text) in [("text", "no JSON"), ("other", "{\"traceEvents\": []}"), ("list", "[]")] {
        std::fs::write(folder.0.join(name), text).unwrap();
        refused(&[name], "is not a trace of OxSHMEM");
    }

    let mut job = program(&["memory", "-n", "2"]);
    job.current_dir(&folder.0).env("OXSHMEM_DEVICE", "cpu").env("OXSHMEM_PROFILE", "trace,counters");
    let output = job.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = trace(&["--json", "--slowest", "3", "--output", "all.json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["n_pes"].as_u64(), report["pes"].as_array().unwrap().len()), (Some(2), 2));
    assert_eq!((report["pes"][1]["pe"].as_u64(), report["pes"][1]["dropped"].as_u64()), (Some(1), Some(0)));
    assert_eq!(report["slowest"].as_array().unwrap().len(), 3);
    let rows = report["rows"].as_array().unwrap();
    let put = |pe: u64| rows.iter().find(|row| row["pe"] == pe && row["operation"] == "put").unwrap();
    // Each PE tells PE 0 of its memory.
    for pe in 0..2 {
        assert_eq!((put(pe)["peer"].as_u64(), put(pe)["calls"].as_u64()), (Some(0), Some(1)), "{}", put(pe));
        assert_eq!(put(pe)["bytes"].as_u64(), Some(2 * 8 * oxshmem::MemoryKind::ALL.len() as u64));
        assert!(put(pe)["call_us"]["longest"].as_f64() > Some(0.0) && put(pe)["doorbell_us"].is_null());
    }
    let phases: u64 =
        rows.iter().filter(|row| row["operation"] == "init").map(|row| row["calls"].as_u64().unwrap()).sum();
    assert_eq!(phases, 2 * 11);

    // One trace of both, with one clock: the PEs' barriers overlap.
    let all: Value = serde_json::from_slice(&std::fs::read(folder.0.join("all.json")).unwrap()).unwrap();
    let events = all["traceEvents"].as_array().unwrap();
    let barrier = |pe: u64| {
        let is = |event: &&Value| event["pid"] == pe && event["name"] == "barrier";
        let event = events.iter().find(is).unwrap();
        let ts = event["ts"].as_f64().unwrap();
        (ts, ts + event["dur"].as_f64().unwrap())
    };
    let ((begin0, end0), (begin1, end1)) = (barrier(0), barrier(1));
    assert!(begin0 < end1 && begin1 < end0, "{begin0} to {end0}, and {begin1} to {end1}");

    let text = String::from_utf8_lossy(&trace(&["oxshmem-profile"]).stdout).into_owned();
    assert!(text.contains("2 of 2 PEs") && text.contains("The slowest"), "{text}");
    let file = "oxshmem-profile/trace-0.json";
    refused(&[file, file], "are both of PE 0; name the files of one job");
}

#[test]
fn contexts_have_a_price() {
    let ask = |args: &[&str]| program(&[&["contexts"], args].concat()).output().unwrap();
    let output = ask(&["--json", "--count", "132", "--depth", "256", "-n", "32", "--far", "24"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["queue_pairs"].as_u64(), Some(132 * 24));
    let each = report["bytes_of_each_queue_pair"].as_u64().unwrap();
    assert!(each >= 68 * (256 + 64), "{report}");
    assert!(report["bytes"].as_u64().unwrap() >= 132 * 24 * each, "{report}");
    let text = stdout(&ask(&["--sharing", "warp"]));
    assert!(text.contains("1 context for one warp at a time") && text.contains("7 queue pairs"), "{text}");
    for (wrong, named) in [("--depth=300", "300 blocks"), ("--far=9", "9 of 8"), ("--sharing=all", "thread, warp")] {
        let output = ask(&[wrong]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(named), "{told}");
    }
}
