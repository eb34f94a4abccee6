//! Every program from the outside: exit status, table, JSON, and what it says when something is
//! wrong.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use oxshmem_perftest::bench::Bench;
use oxshmem_perftest::report::Row;

use common::{File, run, text, unfolded};

fn program(bench: Bench) -> &'static str {
    match bench {
        Bench::PutBw => env!("CARGO_BIN_EXE_shmem_put_bw"),
        Bench::PBw => env!("CARGO_BIN_EXE_shmem_p_bw"),
        Bench::GetBw => env!("CARGO_BIN_EXE_shmem_get_bw"),
        Bench::GBw => env!("CARGO_BIN_EXE_shmem_g_bw"),
        Bench::PutLatency => env!("CARGO_BIN_EXE_shmem_put_latency"),
        Bench::PLatency => env!("CARGO_BIN_EXE_shmem_p_latency"),
        Bench::GLatency => env!("CARGO_BIN_EXE_shmem_g_latency"),
        Bench::AtomicBw => env!("CARGO_BIN_EXE_shmem_atomic_bw"),
        Bench::AtomicLatency => env!("CARGO_BIN_EXE_shmem_atomic_latency"),
        Bench::SignalPingPong => env!("CARGO_BIN_EXE_shmem_signal_ping_pong"),
        Bench::PutSignalPingPong => env!("CARGO_BIN_EXE_shmem_put_signal_ping_pong"),
    }
}

/// Runs a test that shall succeed; its rows.
fn rows(bench: Bench, args: &str) -> Vec<Row> {
    rows_of(program(bench), bench, args)
}

fn rows_of(program: &str, bench: Bench, args: &str) -> Vec<Row> {
    let json = File::new("jsonl");
    let output = run(program, &format!("{args} --json {}", json.path().display()), &[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{} {args}: {out}{err}", bench.name());
    assert_eq!(err, "", "{} {args}", bench.name());
    let lines = json.read();
    let rows: Vec<Row> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // A title, the columns' titles, and a line for each row.
    let titles = out.lines().take_while(|line| line.starts_with('#')).count();
    assert_eq!(out.lines().count(), rows.len() + titles + 1, "{out}");
    assert!(out.lines().all(|line| line.len() <= 80), "{out}");
    assert!(out.starts_with(&format!("# {}", bench.name())) && unfolded(&out).contains("no hardware"), "{out}");
    assert_eq!(out.matches("verified").count(), rows.len(), "{out}");
    assert!(rows.iter().all(|row| row.verified && row.bench == bench.name() && row.job.device == "cpu"), "{rows:?}");
    rows
}

/// Tiny sizes, odd ones where the test takes them, and fewer bytes than CTAs.
fn small(bench: Bench) -> String {
    let sizes = match (bench.only_size(), bench.unit()) {
        (Some(_), _) => String::new(),
        (None, 1) => "-b 1 -e 300 -f 7".to_owned(),
        (None, _) => "-b 8 -e 1000 -f 5".to_owned(),
    };
    let ctas = if bench.takes_ctas() { "-c 3 -t 33" } else { "" };
    format!("-n 7 -w 2 {sizes} {ctas}")
}

fn check_all(transport: &str) {
    for bench in Bench::ALL {
        let rows = rows(bench, &format!("{} --transport {transport}", small(bench)));
        let scopes = bench.scopes().len();
        let sizes = if bench.only_size().is_some() { 1 } else { 4 };
        assert_eq!(rows.len(), scopes * sizes, "{}", bench.name());
        for row in &rows {
            assert_eq!((row.job.npes, row.iters, row.job.transport.as_str()), (2, 7, transport));
            assert_eq!((row.gbps.is_some(), row.mops.is_some()), (!bench.is_latency(), !bench.is_latency()));
            assert_eq!(
                (row.times.us_p50.is_some(), row.times.us_p99.is_some()),
                (bench.is_latency(), bench.is_latency())
            );
            assert!(row.gbps.into_iter().chain(row.mops).chain(row.times.us_p50).all(|figure| figure > 0.0), "{row:?}");
            let network = transport == "ibgda";
            assert_eq!(row.job.hca.as_deref(), network.then_some("soft"));
            // Each of the iterations posts something, and doorbells are shared but never more than
            // work requests.
            assert_eq!(row.job.posted.wqes.is_some_and(|wqes| wqes >= 7), network, "{row:?}");
            assert_eq!(row.job.posted.doorbells.is_some_and(|doorbells| doorbells > 0), network, "{row:?}");
            assert!(!network || row.job.posted.doorbells <= row.job.posted.wqes, "{row:?}");
        }
    }
}

/// What the part `grids` of the GPU bundle runs on GPUs, scaled down: more CTAs than run at a time,
/// few and many queue pairs, and each engine of the software HCA.
#[test]
fn grids_of_any_size_verify_their_data() {
    let tests: [(Bench, &str); 4] = [
        (Bench::PBw, "--stride 1"),
        (Bench::PBw, "--stride 16"),
        (Bench::PutBw, "--scope thread"),
        (Bench::AtomicBw, ""),
    ];
    let ways: [(&str, &[&str], &[&str]); 3] = [
        ("p2p", &["1"], &["auto"]),
        ("ibgda", &["1", "4", "64"], &["auto", "kernel", "copy"]),
        ("ibrc", &["1", "4", "64"], &["auto", "copy"]),
    ];
    for (transport, queue_pairs, engines) in ways {
        for ((bench, options), (qps, engine)) in tests.iter().flat_map(|test| {
            queue_pairs
                .iter()
                .flat_map(|qps| engines.iter().map(move |engine| (qps, engine)))
                .map(move |way| (test, way))
        }) {
            let (ctas, threads) = (33, 64);
            let bytes = ctas * threads * 8;
            let args = format!(
                "-n 2 -w 1 -c {ctas} -t {threads} -b {bytes} -e {bytes} {options} --transport {transport} --qps {qps} --device cpu"
            );
            let output = run(program(*bench), &args, &[("OXSHMEM_SOFT_ENGINE", engine)]);
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success() && err.is_empty(), "{} {args} ({engine}): {out}{err}", bench.name());
            assert_eq!(out.matches("verified").count(), 1, "{} {args} ({engine}): {out}", bench.name());
        }
    }
}

#[test]
fn every_test_verifies_its_data_over_p2p() {
    check_all("p2p");
}

#[test]
fn every_test_verifies_its_data_over_ibgda() {
    check_all("ibgda");
}

#[test]
fn every_atomic_does_what_it_should() {
    let ops = "inc fetch_inc add fetch_add set swap compare_swap and fetch_and or fetch_or xor fetch_xor fetch";
    for op in ops.split(' ') {
        for transport in ["p2p", "ibgda"] {
            let rows =
                rows(Bench::AtomicBw, &format!("--op {op} -b 72 -e 72 -n 5 -w 1 -c 2 -t 5 --transport {transport}"));
            assert_eq!((rows.len(), rows[0].op.as_deref()), (1, Some(op)));
        }
    }
    assert_eq!(
        rows(Bench::AtomicLatency, "--op compare_swap -n 5 --transport ibgda")[0].op.as_deref(),
        Some("compare_swap")
    );
}

#[test]
fn adjacent_lanes_combine_and_others_do_not() {
    let args = "-b 4K -e 4K -n 40 -w 0 -c 1 -t 64 --transport ibgda";
    let combined = rows(Bench::PBw, args);
    let apart = rows(Bench::PBw, &format!("{args} --stride 3"));
    // 512 words, 40 times: a work request for each, or one for each warp.
    assert_eq!(apart[0].job.posted.wqes, Some(512 * 40));
    assert_eq!(combined[0].job.posted.wqes, Some(512 * 40 / 32));
    assert_eq!((combined[0].stride, apart[0].stride), (Some(1), Some(3)));
}

#[test]
fn more_pes_wait_and_more_qps_are_used() {
    let rows = rows(Bench::PutBw, "--npes 3 --qps 2 -b 64 -e 64 -n 3 --transport ibgda --scope block");
    assert_eq!((rows[0].job.npes, rows[0].job.qps), (3, Some(2)));
}

#[test]
fn a_plot_is_drawn() {
    let plot = File::new("svg");
    rows(Bench::PutLatency, &format!("-b 8 -e 64 -f 2 -n 5 --transport p2p --plot {}", plot.path().display()));
    let svg = plot.read();
    assert!(svg.starts_with("<svg") && svg.contains("thread scope, p99") && svg.contains("[us]"));
}

/// Runs a test that shall fail; what it says on standard error.
fn failure(bench: Bench, args: &str, env: &[(&str, &str)]) -> String {
    let output = run(program(bench), args, env);
    assert!(!output.status.success(), "{} {args}: {}", bench.name(), text(&output.stdout));
    assert_ne!(output.status.code(), Some(0));
    text(&output.stderr)
}

#[test]
fn wrong_data_is_an_error_with_its_place() {
    for bench in Bench::ALL {
        let byte = if bench.only_size().is_some() { 0 } else { 40 };
        let sizes = if bench.only_size().is_some() { "" } else { "-b 64 -e 64" };
        let scope = if bench.scopes().len() > 1 { "--scope warp" } else { "" };
        let json = File::new("jsonl");
        let args = format!("--corrupt {byte} {sizes} {scope} -n 3 --transport p2p --json {}", json.path().display());
        let error = failure(bench, &args, &[]);
        let name = bench.name();
        assert!(error.starts_with(&format!("{name}: PE ")), "{error}");
        for part in ["wrong data", "expected 0x", "found 0x", "1 of"] {
            assert!(error.contains(part), "{name}: {error}");
        }
        let place = [format!("byte {byte}:"), format!("word {}:", byte / 8)];
        assert!(place.iter().any(|place| error.contains(place)), "{name}: {error}");
        let line = json.read();
        let row: Row = serde_json::from_str(&line).unwrap();
        assert!(!row.verified, "{name}");
    }
}

#[test]
fn wrong_data_of_the_hca_is_an_error() {
    // A work request that fails ends the run; it does not count as delivered.
    let faults = [("OXSHMEM_SOFT_FAULTS", "error=0x13@qp*:20")];
    let error = failure(Bench::PutBw, "-b 64 -e 64 -n 50 --scope block -c 1 --transport ibgda", &faults);
    assert!(error.contains("\nshmem_put_bw: PE 0: ") && error.contains("remote access"), "{error}");
}

#[test]
fn what_is_not_there_is_one_clear_line() {
    for (args, parts) in [
        ("--device cuda", ["cuda", "no NVIDIA driver"]),
        ("--hca mlx5 --transport ibgda", ["mlx5", ""]),
        ("--hca mlx5", ["mlx5", "--transport ibgda"]),
        ("--hca soft", ["--hca soft: no work request", "--transport ibgda"]),
    ] {
        if args == "--device cuda" && Path::new("/dev/nvidiactl").exists() {
            println!("skipped: {args}: this machine has an NVIDIA driver");
            continue;
        }
        for bench in [Bench::PutBw, Bench::SignalPingPong] {
            let error = failure(bench, args, &[]);
            assert_eq!(error.trim_end().lines().count(), 1, "{args}: {error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{args}: {error}");
        }
    }
}

#[test]
fn bad_options_are_refused_before_anything_starts() {
    for (args, part) in [
        ("--min 1K --max 16", "larger than --max"),
        ("--transport warp", "auto, p2p, ibgda or ibrc"),
        ("--qps 0", "OXSHMEM_QPS_PER_PEER=0"),
        ("--stride 2", "shmem_p_bw"),
        ("--min 8 --max 64 --plot /nonexistent/plot.svg", "the folder /nonexistent does not exist"),
        ("extra", "extra"),
    ] {
        let output = run(program(Bench::PutBw), args, &[]);
        assert_eq!(output.status.code(), Some(2), "{args}");
        let error = text(&output.stderr);
        assert!(error.contains(part) && output.stdout.is_empty(), "{args}: {error}");
        assert_eq!(error.matches("error: ").count(), 1, "{error}");
    }
    let error = failure(Bench::PutBw, "", &[("OXSHMEM_QPDEPTH", "64")]);
    assert!(error.contains("OXSHMEM_QP_DEPTH"), "{error}");
}

#[test]
fn files_that_cannot_be_written_are_named() {
    let args = "-b 8 -e 64 -n 1 --transport p2p --scope thread";
    let error = failure(Bench::PutBw, &format!("{args} --json /nonexistent/rows.jsonl"), &[]);
    assert!(error.contains("/nonexistent/"), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
}

#[test]
fn help_shows_what_applies() {
    let help = |bench| text(&run(program(bench), "--help", &[]).stdout);
    assert!(help(Bench::PBw).contains("--stride") && !help(Bench::PBw).contains("--op"));
    assert!(help(Bench::AtomicBw).contains("--op") && !help(Bench::AtomicBw).contains("--stride"));
    for option in "--min --max --factor --iters --warmup --ctas --threads --scope --device --transport --hca --qps --npes --json --plot"
        .split(' ')
    {
        assert!(help(Bench::PutBw).contains(option), "{option}");
    }
}

#[test]
fn the_demo_compares_the_transports() {
    let output = run(env!("CARGO_BIN_EXE_demo"), "", &[]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    for part in ["p2p ", "ibgda ", "ibrc ", "lanes combine", "not combined", "software HCA", "not of a GPU"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(out.lines().filter(|line| line.ends_with(" verified")).count(), 8, "{out}");
}

#[test]
fn the_rendezvous_alone_is_shown_by_step() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-time.jsonl");
    for (per_node, connections) in [(1, [16, 64]), (6, [3, 11])] {
        let args = format!("--hub 16,64 --per-node {per_node} --json {}", file.display());
        let output = run(env!("CARGO_BIN_EXE_shmem_init_time"), &args, &[]);
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && error.is_empty(), "{out}{error}");
        let lines = std::fs::read_to_string(&file).unwrap();
        let rows: Vec<oxshmem_perftest::hub_time::Row> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps: Vec<&str> = rows.iter().map(|row| row.step.as_str()).collect();
        assert_eq!(steps, ["join", "allgather", "alltoall", "barrier", "abort"].repeat(2));
        for (at, row) in rows.iter().enumerate() {
            let npes = [16, 64][at / 5];
            assert_eq!((row.npes, row.connections, row.growth.is_some()), (npes, connections[at / 5], npes == 64));
            assert!(row.ms > 0.0 && row.sent > 0 && row.descriptors > row.connections as usize, "{row:?}");
        }
        let alltoall = &rows[7];
        let all = 64 * 64 * 64;
        assert!((all..2 * all).contains(&alltoall.received) && (all..2 * all).contains(&alltoall.sent), "{alltoall:?}");
    }
}

#[test]
fn init_is_shown_by_phase() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("init-time.jsonl");
    let args = format!("-n 3 --npes 3 --transport ibgda --json {}", file.display());
    let output = run(env!("CARGO_BIN_EXE_shmem_init_time"), &args, &[]);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && error.is_empty(), "{out}{error}");
    let lines = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<oxshmem_perftest::init_time::Row> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let phases: Vec<&str> = rows.iter().map(|row| row.phase.as_str()).collect();
    assert_eq!(
        (phases[0], phases[phases.len() - 2], phases[phases.len() - 1]),
        ("bootstrap", "all of init", "finalize")
    );
    let shown = out.lines().filter(|line| !line.starts_with('#')).count();
    assert!(phases.contains(&"network") && shown == rows.len() + 1, "{out}");
    let (last, before) = rows.split_last().unwrap();
    let (total, parts) = before.split_last().unwrap();
    let slowest_phase = parts.iter().map(|row| row.ms_p50).fold(0.0, f64::max);
    assert!(last.ms_p50 > 0.0 && slowest_phase > 0.0 && slowest_phase <= total.ms_slowest, "{out}");
    for row in &rows {
        assert!((row.job.npes, row.rounds) == (3, 3) && row.slowest_pe < 3 && row.ms_p50 <= row.ms_slowest, "{row:?}");
    }
}

#[test]
fn the_demo_fails_when_a_step_does() {
    let output = run(env!("CARGO_BIN_EXE_demo"), "", &[("OXSHMEM_SOFT_FAULTS", "error=0x13@qp*:20")]);
    assert!(!output.status.success());
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(out.ends_with("FAILED\n") && error.starts_with("demo: PE 0: ") && error.contains("PE 1"), "{out}{error}");
}

/// Programs that print tables, with arguments that make them print several lines.
fn printing() -> [(&'static str, &'static str); 7] {
    [
        (program(Bench::PutBw), "-n 2 -w 1 -b 8 -e 256"),
        (
            env!("CARGO_BIN_EXE_shmem_collective_latency"),
            "-n 2 -w 1 --collective sync --collective barrier --collective fcollect -b 8 -e 64",
        ),
        (env!("CARGO_BIN_EXE_jacobi"), "--npes 2 --nx 64 --ny 32 --niter 4"),
        (env!("CARGO_BIN_EXE_gups"), "--npes 2 --updates 100 --words 50"),
        (env!("CARGO_BIN_EXE_histogram"), "--npes 2 --keys 100 --bins 50"),
        (env!("CARGO_BIN_EXE_alltoall"), "--npes 2 -n 2 --max 64"),
        (env!("CARGO_BIN_EXE_demo"), ""),
    ]
}

#[test]
fn a_reader_that_goes_away_ends_a_program_quietly() {
    for (program, args) in printing() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(program)
            .args(args.split_whitespace())
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), error.as_str()), (Some(141), ""), "{program} {args}");
    }
}

#[test]
fn a_full_disk_is_one_line() {
    for (program, args) in printing() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = std::process::Command::new(program)
            .args(args.split_whitespace())
            .stdout(full)
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{program} {args}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{program} {args}: {error}");
        assert!(error.contains("cannot write standard output: No space left on device"), "{program} {args}: {error}");
    }
}

#[test]
fn a_signal_ends_the_demo_with_its_status() {
    let mut demo = std::process::Command::new(env!("CARGO_BIN_EXE_demo"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // A job runs from here on.
    let mut out = std::io::BufReader::new(demo.stdout.take().unwrap());
    let mut seen = Vec::new();
    while !seen.ends_with(b"64 KiB by four blocks") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut out, &mut byte).unwrap();
        seen.extend(byte);
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    // SIGINT is ignored by what a script has started in the background.
    rustix::process::kill_process(rustix::process::Pid::from_child(&demo), rustix::process::Signal::TERM).unwrap();
    std::io::Read::read_to_end(&mut out, &mut seen).unwrap();
    let output = demo.wait_with_output().unwrap();
    // Before its job has begun, the signal ends the program itself.
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert!(output.status.code() == Some(143) || signal == Some(15), "{:?} {}", output.status, text(&output.stderr));
    assert!(!text(&seen).contains("FAILED"), "{}", text(&seen));
}

#[test]
fn help_is_wrapped_at_words() {
    for (program, _) in printing().into_iter().take(4) {
        let output = std::process::Command::new(program).arg("--help").env("COLUMNS", "80").output().unwrap();
        let out = text(&output.stdout);
        assert!(output.status.success() && out.lines().all(|line| line.chars().count() <= 80), "{program}: {out}");
    }
}
