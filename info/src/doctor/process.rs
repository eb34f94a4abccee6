//! What the system lets this process do: limits, containers, sharing of memory between processes.

use std::os::linux::net::SocketAddrExt as _;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, Outcome, Want, Wants};
use super::root::{Missing, Root};

/// Limits of this process; `None` is without limit.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory that it may lock, bytes.
    pub locked: Option<u64>,
    /// What it may raise that to.
    pub locked_hard: Option<u64>,
    /// Open files.
    pub files: Option<u64>,
}

impl Limits {
    /// Returns the limits of this process.
    pub fn own() -> Self {
        let (locked, files) = (getrlimit(Resource::Memlock), getrlimit(Resource::Nofile));
        Self { locked: locked.current, locked_hard: locked.maximum, files: files.current }
    }
}

/// What a PE needs of the machine, as configured.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// Bytes of one heap chunk.
    pub chunk: u64,
    /// Bytes of the whole heap.
    pub heap: u64,
}

fn mib(bytes: u64) -> String {
    if bytes >= 10 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Returns the limit of locked memory, which registration of host memory counts against.
pub fn memlock(limits: Limits, needs: Needs, wants: Wants, privileged: bool) -> Finding {
    const PROBE: &str = "system.memlock";
    let Some(limit) = limits.locked else { return Finding::ok(PROBE, "no limit of locked memory") };
    let reason = format!("this process may lock {} of memory (RLIMIT_MEMLOCK)", mib(limit));
    // A chunk of a heap in host memory and as much again for queues.
    let enough = limit >= needs.heap.saturating_add(needs.chunk);
    if privileged {
        return Finding::ok(PROBE, format!("{reason}, which does not bind it (CAP_IPC_LOCK)"));
    }
    if wants.card == Want::No || enough {
        return Finding::ok(PROBE, reason);
    }
    let hard = match limits.locked_hard {
        None => "ulimit -l unlimited in the shell that starts the job".to_owned(),
        Some(hard) => format!("the hard limit is {}: raise it", mib(hard)),
    };
    let remedy = format!(
        "{hard}; for good: memlock in /etc/security/limits.conf, LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for a container"
    );
    let short = if limit < needs.chunk { Outcome::Fail } else { Outcome::Warn };
    let result = if wants.card == Want::Must { short } else { Outcome::Warn };
    Finding::bad(
        PROBE,
        result,
        format!("{reason}; registering a heap in host memory takes up to {} (OXSHMEM_HEAP_MAX)", mib(needs.heap)),
        remedy,
    )
}

/// Checks the limit of open files: each heap chunk of each PE of the node is one.
pub fn files(limits: Limits, needs: Needs, peers: u64) -> Finding {
    const PROBE: &str = "system.files";
    let needed = (needs.heap / needs.chunk.max(1)) * peers + 256;
    match limits.files {
        Some(limit) if limit < needed => Finding::bad(
            PROBE,
            Outcome::Warn,
            format!("{limit} open files are allowed; {peers} PEs with full heaps need about {needed}"),
            "ulimit -n 65536, or larger chunks (OXSHMEM_HEAP_CHUNK)",
        ),
        Some(limit) => Finding::ok(PROBE, format!("{limit} open files are allowed")),
        None => Finding::ok(PROBE, "no limit of open files"),
    }
}

/// Returns which container this is, if one.
pub fn container(root: &Root) -> Option<String> {
    let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"), ("/run/systemd/container", "systemd")];
    if let Some((_, name)) = marks.into_iter().find(|(path, _)| root.exists(path)) {
        return Some(name.to_owned());
    }
    let groups = root.text("/proc/1/cgroup").unwrap_or_default();
    let names = [
        ("kubepods", "Kubernetes"),
        ("docker", "Docker"),
        ("containerd", "containerd"),
        ("lxc", "LXC"),
        ("libpod", "Podman"),
    ];
    if let Some((_, name)) = names.into_iter().find(|(word, _)| groups.contains(word)) {
        return Some(name.to_owned());
    }
    // The root of a container is an overlay, as that of few hosts.
    let mounts = root.text("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.starts_with("overlay / overlay")).then(|| "a container".to_owned())
}

/// Returns a field of `/proc/self/status`.
fn status_field(root: &Root, name: &str) -> Result<Option<String>, Missing> {
    let text = root.text("/proc/self/status")?;
    let field = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(field.map(|value| value.trim().to_owned()))
}

/// Returns whether the process may lock memory beyond its limit (CAP_IPC_LOCK, capability 14). In a
/// user namespace of its own, as a container without root has one, the capability does not count.
pub fn may_lock(root: &Root) -> bool {
    let bits = status_field(root, "CapEff").ok().flatten();
    let capable = bits.and_then(|bits| u64::from_str_radix(&bits, 16).ok()).is_some_and(|bits| bits >> 14 & 1 == 1);
    capable && in_initial_user_namespace(root)
}

/// Returns whether the process is in the first user namespace, which alone maps all users to
/// themselves. A kernel without such namespaces has no file of the map.
fn in_initial_user_namespace(root: &Root) -> bool {
    let Ok(map) = root.text("/proc/self/uid_map") else { return true };
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Checks the container, seccomp, and what of the container's flags is missing.
pub fn confinement(root: &Root, wants: Wants) -> Vec<Finding> {
    let mut findings = Vec::new();
    let container = container(root);
    match &container {
        None => findings.push(Finding::ok("container.kind", "not in a container, as far as can be told")),
        Some(name) => findings.push(Finding::ok("container.kind", format!("in {name}"))),
    }
    let seccomp = match status_field(root, "Seccomp") {
        Err(missing) => Finding::bad(
            "container.seccomp",
            Outcome::Warn,
            format!("/proc/self/status cannot be read: {missing}"),
            "mount /proc",
        ),
        Ok(mode) => match mode.as_deref() {
            None | Some("0") => Finding::ok("container.seccomp", "no filter of system calls"),
            Some("2") => Finding::ok(
                "container.seccomp",
                "system calls are filtered; those that are needed (memfd_create, sockets, mmap) are tried by system.sharing",
            ),
            Some(other) => Finding::ok("container.seccomp", format!("seccomp mode {other}")),
        },
    };
    findings.push(seccomp);
    if let Some(name) = container {
        let cards = root.entries("/sys/class/infiniband").unwrap_or_default();
        if !cards.is_empty() && !root.exists("/dev/infiniband") && wants.card != Want::No {
            findings.push(Finding::bad(
                "container.devices",
                wants.card.broken(),
                format!("{name} shows RDMA devices ({}) but no /dev/infiniband", cards.join(", ")),
                "start it with --device /dev/infiniband --ulimit memlock=-1 (Kubernetes: an RDMA device plugin)",
            ));
        } else {
            findings.push(Finding::ok(
                "container.devices",
                "no device that is seen lacks its node because of the container",
            ));
        }
    }
    findings
}

/// Returns the folders that hold the limits of a controller for this process, of which the lowest
/// counts: its control group's and those of all groups above. `own` is `/proc/self/cgroup`, with
/// the line `0::/path` for version 2 and a line `4:cpu,cpuacct:/path` for each hierarchy of version
/// 1. A container may show its own group as the root, where the path is not found.
fn control_groups(own: &str, controller: &str) -> Vec<String> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if controllers.is_empty() {
            groups.push(("/sys/fs/cgroup".to_owned(), path));
        } else if controllers.split(',').any(|name| name == controller) {
            groups.extend([controllers, controller].map(|mount| (format!("/sys/fs/cgroup/{mount}"), path)));
        }
    }
    if groups.is_empty() {
        groups.push(("/sys/fs/cgroup".to_owned(), "/"));
    }
    let with_above = |(mount, path): (String, &str)| -> Vec<String> {
        // A group outside of what the container shows.
        let path = if path.split('/').any(|part| part == "..") { "/" } else { path };
        let above = Path::new(path).ancestors();
        above.map(|group| format!("{mount}{}", group.display()).trim_end_matches('/').to_owned()).collect()
    };
    groups.into_iter().flat_map(with_above).collect()
}

/// Returns the limit of memory that a control group has itself, bytes.
fn memory_limit(root: &Root, group: &str) -> Option<u64> {
    /// Version 1 shows no limit as the greatest number of pages.
    const NO_LIMIT: u64 = 1 << 62;
    let text =
        ["memory.max", "memory.limit_in_bytes"].iter().find_map(|file| root.text(&format!("{group}/{file}")).ok());
    text?.parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

/// Returns how many processors a control group may use itself.
fn cpu_limit(root: &Root, group: &str) -> Option<f64> {
    let read = |file: &str| root.text(&format!("{group}/{file}")).ok();
    let (quota, period) = match read("cpu.max") {
        Some(text) => text.split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned()))?,
        None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    // No limit is `max` in version 2, and -1 in version 1.
    let positive = |text: &str| text.parse::<f64>().ok().filter(|number| *number > 0.0);
    Some(positive(&quota)? / positive(&period)?)
}

/// Checks the limits of the control group and of those above it: memory, processors.
pub fn cgroup(root: &Root, needs: Needs) -> Finding {
    const PROBE: &str = "container.cgroup";
    let own = root.text("/proc/self/cgroup").unwrap_or_default();
    let memory = control_groups(&own, "memory").iter().filter_map(|group| memory_limit(root, group)).min();
    let cpus = control_groups(&own, "cpu").iter().filter_map(|group| cpu_limit(root, group)).reduce(f64::min);
    let mut parts = Vec::new();
    let mut remedies = Vec::new();
    if let Some(bytes) = memory {
        parts.push(format!("{} of memory", mib(bytes)));
        if bytes < needs.chunk.saturating_mul(2) {
            remedies.push(format!("allow at least {} of memory, or lower OXSHMEM_HEAP_CHUNK", mib(needs.chunk * 2)));
        }
    }
    if let Some(cpus) = cpus {
        parts.push(format!("{cpus:.1} processors"));
        if cpus < 1.0 {
            remedies.push("allow a whole processor: threads that poll are slow otherwise".to_owned());
        }
    }
    match (parts.is_empty(), remedies.is_empty()) {
        (true, _) => Finding::ok(PROBE, "no limit of memory or processors"),
        (false, true) => Finding::ok(PROBE, format!("limited to {}", parts.join(" and "))),
        (false, false) => {
            Finding::bad(PROBE, Outcome::Warn, format!("limited to {}", parts.join(" and ")), remedies.join("; "))
        }
    }
}

/// Checks `/dev/shm`: for launchers and for other libraries.
pub fn shm(root: &Root, bytes: Option<u64>) -> Finding {
    const PROBE: &str = "container.shm";
    match bytes {
        _ if !root.exists("/dev/shm") => Finding::bad(
            PROBE,
            Outcome::Warn,
            "there is no /dev/shm; memory is shared by file descriptor here, but MPI launchers may need it",
            "mount it: mount -t tmpfs tmpfs /dev/shm, --shm-size for a container",
        ),
        None => Finding::ok(PROBE, "/dev/shm is there (not used here: memory is shared by file descriptor)"),
        Some(bytes) if bytes <= 64 << 20 => Finding::ok(
            PROBE,
            format!(
                "/dev/shm has {}, a container's default; not used here, but MPI and NCCL may want more (--shm-size)",
                mib(bytes)
            ),
        ),
        Some(bytes) => Finding::ok(
            PROBE,
            format!("/dev/shm has {} (not used here: memory is shared by file descriptor)", mib(bytes)),
        ),
    }
}

/// Returns the size of the file system at `/dev/shm`.
pub fn shm_bytes() -> Option<u64> {
    let stats = rustix::fs::statvfs("/dev/shm").ok()?;
    Some(stats.f_blocks.saturating_mul(stats.f_frsize))
}

/// Tries what PEs of one node do with each other: memory by descriptor, abstract sockets, the
/// loopback interface.
pub fn sharing() -> Finding {
    const PROBE: &str = "system.sharing";
    let step = |what: &'static str, result: std::io::Result<()>| result.map_err(|error| (what, error));
    let tried = step("memfd_create", try_memfd())
        .and_then(|()| step("an abstract unix socket", try_socket()))
        .and_then(|()| step("a TCP socket on the loopback interface", try_loopback()));
    match tried {
        Ok(()) => Finding::ok(PROBE, "memory by descriptor, unix sockets and the loopback interface can be used"),
        Err((what, error)) => Finding::bad(
            PROBE,
            Outcome::Fail,
            format!("{what} is refused: {error}; PEs of one node cannot meet or share memory"),
            "allow it in the seccomp profile (Docker: --security-opt seccomp=unconfined), bring the loopback interface up (ip link set lo up)",
        ),
    }
}

fn try_memfd() -> std::io::Result<()> {
    let fd = rustix::fs::memfd_create("oxshmem-doctor", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, 4096)?;
    let flags = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping wherever there is room, which is not used and is given back.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), 4096, flags.0, flags.1, &fd, 0)?;
        rustix::mm::munmap(at, 4096)?;
    }
    Ok(())
}

fn try_socket() -> std::io::Result<()> {
    let name = format!("oxshmem-doctor-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    std::os::unix::net::UnixListener::bind_addr(&address).map(drop)
}

fn try_loopback() -> std::io::Result<()> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    std::net::TcpStream::connect_timeout(&listener.local_addr()?, std::time::Duration::from_millis(500)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::root::recorded::Recorded;
    use super::*;

    const ALL: Wants = Wants { gpu: Want::Must, card: Want::Must, mlx5: true };
    const SOME: Wants = Wants { gpu: Want::IfThere, card: Want::IfThere, mlx5: true };
    const NEEDS: Needs = Needs { chunk: 64 << 20, heap: 1 << 30 };

    fn limits(locked: Option<u64>) -> Limits {
        Limits { locked, locked_hard: Some(64 << 20), files: Some(1024) }
    }

    #[test]
    fn locked_memory_counts_where_a_card_is_wanted() {
        assert_eq!(memlock(limits(None), NEEDS, ALL, false).result, Outcome::Ok);
        assert_eq!(memlock(limits(Some(4 << 30)), NEEDS, ALL, false).result, Outcome::Ok);
        let low = memlock(limits(Some(64 << 10)), NEEDS, ALL, false);
        assert_eq!(low.result, Outcome::Fail);
        assert!(low.reason.contains("64 KiB") && low.remedy.is_some_and(|text| text.contains("limits.conf")));
        assert_eq!(memlock(limits(Some(128 << 20)), NEEDS, ALL, false).result, Outcome::Warn);
        assert_eq!(memlock(limits(Some(64 << 10)), NEEDS, SOME, false).result, Outcome::Warn);
        assert_eq!(memlock(limits(Some(64 << 10)), NEEDS, Wants { card: Want::No, ..SOME }, false).result, Outcome::Ok);
        assert_eq!(memlock(limits(Some(64 << 10)), NEEDS, ALL, true).result, Outcome::Ok);
    }

    #[test]
    fn files_are_counted_by_chunks_and_pes() {
        assert_eq!(files(limits(None), NEEDS, 8).result, Outcome::Ok);
        let few = files(limits(None), Needs { heap: 16 << 30, ..NEEDS }, 8);
        assert_eq!(few.result, Outcome::Warn);
        assert!(few.reason.contains("2304"), "{}", few.reason);
        assert_eq!(files(Limits { files: None, ..limits(None) }, NEEDS, 1000).result, Outcome::Ok);
    }

    #[test]
    fn containers_are_recognised_and_their_missing_devices_named() {
        let plain = Recorded::new(
            "/proc/self/status = Seccomp:\\t0\\nCapEff:\\t0000000000004000\n/proc/1/cgroup = 0::/init.scope",
        );
        assert_eq!(container(&plain.root), None);
        assert!(may_lock(&plain.root));
        assert!(confinement(&plain.root, ALL).iter().all(|finding| finding.result == Outcome::Ok));

        plain.add("/proc/self/uid_map =          0          0 4294967295");
        assert!(may_lock(&plain.root));
        // In a container without root the capability is the container's alone.
        let rootless = "/proc/self/status = CapEff:\\t0000000000004000\n/proc/self/uid_map = 0 1000 1\\n1 100000 65536";
        assert!(!may_lock(&Recorded::new(rootless).root));

        let docker = Recorded::new(
            "/.dockerenv = \n/proc/self/status = Seccomp:\\t2\\nCapEff:\\tzz\n/sys/class/infiniband/mlx5_0/",
        );
        assert!(!may_lock(&docker.root));
        let findings = confinement(&docker.root, ALL);
        assert!(findings.iter().any(|f| f.probe == "container.seccomp" && f.reason.contains("filtered")));
        let devices = findings.iter().find(|f| f.probe == "container.devices");
        assert!(devices.is_some_and(|f| f.result == Outcome::Fail && f.reason.contains("mlx5_0")), "{findings:?}");
        let findings = confinement(&docker.root, SOME);
        assert!(findings.iter().any(|f| f.probe == "container.devices" && f.result == Outcome::Warn));
        docker.add("/dev/infiniband/uverbs0 = ");
        assert!(confinement(&docker.root, ALL).iter().all(|f| f.result == Outcome::Ok));

        for (files, name) in [
            ("/run/.containerenv = ", "Podman"),
            ("/proc/1/cgroup = 0::/kubepods/pod1", "Kubernetes"),
            ("/proc/self/mounts = overlay / overlay rw 0 0", "a container"),
        ] {
            assert_eq!(container(&Recorded::new(files).root).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_hidden_proc_is_a_warning() {
        let empty = Recorded::new("/proc/");
        let findings = confinement(&empty.root, ALL);
        assert!(findings.iter().any(|f| f.probe == "container.seccomp" && f.result == Outcome::Warn), "{findings:?}");
        // A folder where a file should be.
        let odd = Recorded::new("/proc/self/status/");
        assert!(confinement(&odd.root, ALL).iter().any(|f| f.result == Outcome::Warn));
    }

    #[test]
    fn limits_of_control_groups_are_read_where_they_are() {
        let none = Recorded::new("/proc/self/cgroup = 0::/");
        assert_eq!(cgroup(&none.root, NEEDS).result, Outcome::Ok);
        let tight = Recorded::new(
            "/proc/self/cgroup = 0::/a\n/sys/fs/cgroup/a/memory.max = 67108864\n/sys/fs/cgroup/a/cpu.max = 50000 100000",
        );
        let finding = cgroup(&tight.root, NEEDS);
        assert_eq!(finding.result, Outcome::Warn);
        assert!(finding.reason.contains("64 MiB of memory and 0.5 processors"), "{}", finding.reason);
        let wide = Recorded::new("/sys/fs/cgroup/memory.max = 8589934592\n/sys/fs/cgroup/cpu.max = max 100000");
        assert_eq!(cgroup(&wide.root, NEEDS).reason, "limited to 8192 MiB of memory");
        // The lowest limit of all groups above counts, whichever has it.
        let above = Recorded::new(
            "/proc/self/cgroup = 0::/a/b\n/sys/fs/cgroup/a/memory.max = 134217728\n\
             /sys/fs/cgroup/a/b/memory.max = max\n/sys/fs/cgroup/a/b/cpu.max = 400000 100000\n\
             /sys/fs/cgroup/a/cpu.max = 200000 100000\n/sys/fs/cgroup/memory.max = 268435456",
        );
        assert_eq!(cgroup(&above.root, NEEDS).reason, "limited to 128 MiB of memory and 2.0 processors");
        // Version 1, on a machine, without limits, and in a container, which shows no such path.
        let own = "/proc/self/cgroup = 5:memory:/x/y\\n4:cpu,cpuacct:/x";
        let old = Recorded::new(&format!(
            "{own}\n/sys/fs/cgroup/memory/x/memory.limit_in_bytes = 134217728\n\
             /sys/fs/cgroup/memory/x/y/memory.limit_in_bytes = 9223372036854771712\n\
             /sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us = 300000\n\
             /sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us = 100000"
        ));
        assert_eq!(cgroup(&old.root, NEEDS).reason, "limited to 128 MiB of memory and 3.0 processors");
        let without = Recorded::new(&format!(
            "{own}\n/sys/fs/cgroup/memory/memory.limit_in_bytes = 9223372036854771712\n\
             /sys/fs/cgroup/cpu/cpu.cfs_quota_us = -1\n/sys/fs/cgroup/cpu/cpu.cfs_period_us = 100000"
        ));
        assert_eq!(cgroup(&without.root, NEEDS).reason, "no limit of memory or processors");
        let inside = Recorded::new(&format!("{own}\n/sys/fs/cgroup/memory/memory.limit_in_bytes = 134217728"));
        assert_eq!(cgroup(&inside.root, NEEDS).reason, "limited to 128 MiB of memory");
        let garbage = Recorded::new("/sys/fs/cgroup/memory.max = \u{1}\u{2}x\n/sys/fs/cgroup/cpu.max = 1 0");
        assert_eq!(cgroup(&garbage.root, NEEDS).result, Outcome::Ok);
    }

    #[test]
    fn shared_memory_is_looked_at_for_others() {
        let root = Recorded::new("/dev/shm/");
        assert_eq!(shm(&root.root, Some(64 << 20)).result, Outcome::Ok);
        assert_eq!(shm(&root.root, None).result, Outcome::Ok);
        assert_eq!(shm(&Recorded::new("/dev/").root, None).result, Outcome::Warn);
        assert_eq!(sharing().result, Outcome::Ok);
    }
}
