//! The applications, and the test of collectives, from the outside: results right over each
//! transport, JSON, pictures, and what they say when something is wrong.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::io::BufReader;
use std::time::Duration;

use oxshmem::launch::{self, LaunchOptions, Output};
use serde_json::Value;

use common::{File, run, text, unfolded};

const JACOBI: &str = env!("CARGO_BIN_EXE_jacobi");
const ALLTOALL: &str = env!("CARGO_BIN_EXE_alltoall");
const GUPS: &str = env!("CARGO_BIN_EXE_gups");
const HISTOGRAM: &str = env!("CARGO_BIN_EXE_histogram");
const COLLECTIVES: &str = env!("CARGO_BIN_EXE_shmem_collective_latency");
const COLLECTIVE_BW: &str = env!("CARGO_BIN_EXE_shmem_collective_bw");
const TRANSPORTS: [&str; 3] = ["p2p", "ibgda", "ibrc"];

/// Runs a program that shall succeed, with wrong data nowhere; its rows.
fn rows(program: &str, args: &str, env: &[(&str, &str)]) -> Vec<Value> {
    let json = File::new("jsonl");
    let output = run(program, &format!("{args} --device cpu --json {}", json.path().display()), env);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{args}: {out}{err}");
    let rows: Vec<Value> = json.read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(out.matches(" verified").count(), rows.len(), "{out}");
    assert!(out.starts_with("# ") && unfolded(&out).contains("no hardware"), "{out}");
    assert!(out.lines().all(|line| line.len() <= 80), "{out}");
    assert!(rows.iter().all(|row| row["verified"] == true && row["device"] == "cpu"), "{rows:?}");
    rows.iter().for_each(|row| {
        assert_eq!(row.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>(), fields(program))
    });
    rows
}

/// Returns the fields that `docs/applications.md` and `docs/perftest.md` promise.
fn fields(program: &str) -> BTreeSet<&'static str> {
    let own = match program {
        JACOBI => {
            "app variant ctas nx ny niter norm_every norm ms us_per_iteration gpoints check scaling speedup efficiency"
        }
        ALLTOALL => "app mode via phase ctas bytes tokens experts top_k seed iters us_p50 us_p99 us_mean gbps",
        GUPS | HISTOGRAM => {
            "app op via nodes ctas words updates seed skew rounds ms gups payload segment age_us writes record_bytes acknowledgements"
        }
        _ => "test collective on ctas scope bytes iters us_p50 us_p99 us_mean gbps bus_gbps",
    };
    let common = "device hca transport npes qps threads wqes doorbells verified gpu driver date";
    own.split(' ').chain(common.split(' ')).collect()
}

/// Runs a program that shall fail; what it says.
fn failure(program: &str, args: &str, env: &[(&str, &str)]) -> String {
    let output = run(program, args, env);
    assert!(!output.status.success(), "{args}: {}", text(&output.stdout));
    text(&output.stderr)
}

#[test]
fn jacobi_is_the_serial_solution_over_each_transport() {
    for transport in TRANSPORTS {
        // Rows that do not come out even, columns of no whole vectors, and several pieces of a row.
        let args = format!("--npes 3 --nx 301 --ny 45 --niter 23 --norm-every 5 --transport {transport}");
        let rows = rows(JACOBI, &args, &[]);
        let variants: Vec<&str> = rows.iter().map(|row| row["variant"].as_str().unwrap()).collect();
        assert_eq!(variants, ["p", "put", "overlap"]);
        for row in &rows {
            assert_eq!((&row["app"], &row["check"]), (&"jacobi".into(), &"serial".into()));
            assert_eq!((&row["transport"], &row["npes"], &row["niter"]), (&transport.into(), &3.into(), &23.into()));
            // All variants compute the same, bit by bit.
            assert!(row["norm"].as_f64().unwrap() > 0.0 && row["norm"] == rows[0]["norm"], "{row}");
            assert!(row["ms"].as_f64().unwrap() > 0.0 && row["gpoints"].as_f64().unwrap() > 0.0);
            assert_eq!(row["wqes"].is_u64(), transport != "p2p", "{row}");
        }
    }
}

#[test]
fn jacobi_solves_every_shape() {
    for args in [
        // The smallest mesh; as many PEs as rows; more blocks than work; one thread each.
        "--npes 1 --nx 3 --ny 3 --niter 4",
        "--npes 5 --nx 9 --ny 7 --niter 9 --transport ibgda",
        "--npes 2 --nx 40 --ny 40 --niter 9 --ctas 40",
        "--npes 2 --nx 40 --ny 10 --niter 9 --ctas 3 --threads 1 --transport ibgda --variant p",
        // Without warming up, without a norm, with a last iteration that is not measured.
        "--npes 2 --nx 33 --ny 12 --niter 1 --warmup 0 --norm-every 0",
        "--npes 2 --nx 33 --ny 12 --niter 8 --norm-every 3",
        // Each PE alone is what it is compared with.
        "--npes 3 --nx 50 --ny 31 --niter 12 --check single",
    ] {
        rows(JACOBI, args, &[]);
    }
}

#[test]
fn jacobi_is_right_when_the_hca_reorders() {
    let faults = [("OXSHMEM_SOFT_FAULTS", "seed=7,reorder=0.5,visibility")];
    rows(JACOBI, "--npes 2 --nx 150 --ny 20 --niter 15 --transport ibgda", &faults);
    rows(ALLTOALL, "--npes 2 -b 8 -e 3000 -f 20 -n 8 --transport ibgda", &faults);
    rows(ALLTOALL, "--mode moe --npes 2 -b 160 -e 160 -n 4 --tokens 9 --transport ibgda", &faults);
}

#[test]
fn jacobi_stops_when_it_has_converged() {
    let args = "--npes 2 --nx 30 --ny 30 --niter 100000 --norm-every 10 --tolerance 0.05";
    let rows = rows(JACOBI, args, &[]);
    let done = rows[0]["niter"].as_u64().unwrap();
    assert!(done < 100_000 && done.is_multiple_of(10), "{done}");
    assert!(rows.iter().all(|row| row["niter"] == done && row["norm"].as_f64().unwrap() <= 0.05));
}

#[test]
fn jacobi_scales_over_jobs() {
    let plot = File::new("svg");
    for (scaling, heights) in [("strong", [32, 32, 32]), ("weak", [32, 62, 92])] {
        let args = format!(
            "--scaling {scaling} --npes 3 --nx 40 --ny 32 --niter 20 --variant overlap --plot {}",
            plot.path().display()
        );
        let rows = rows(JACOBI, &args, &[]);
        let shapes: Vec<_> =
            rows.iter().map(|row| (row["npes"].as_u64().unwrap(), row["ny"].as_u64().unwrap())).collect();
        assert_eq!(shapes, [(1, heights[0]), (2, heights[1]), (3, heights[2])]);
        assert!(rows.iter().all(|row| row["scaling"] == scaling && row["efficiency"].as_f64().unwrap() > 0.0));
        assert_eq!(rows[0]["speedup"], 1.0);
        let svg = plot.read();
        assert!(svg.contains(&format!("{scaling} scaling")) && svg.contains("perfect") && svg.contains("overlap"));
    }
}

#[test]
fn pictures_are_drawn() {
    let picture = File::new("png");
    rows(JACOBI, &format!("--npes 2 --nx 200 --ny 21 --niter 20 --variant p --plot {}", picture.path().display()), &[]);
    let mut reader =
        png::Decoder::new(BufReader::new(std::fs::File::open(picture.path()).unwrap())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    // Two pixels a side for each point.
    assert_eq!((info.width, info.height), (400, 42));
    let pixel = |x: usize, y: usize| -> [u8; 3] { pixels[3 * (y * 400 + x)..][..3].try_into().unwrap() };
    let (cold, hot) = ([0, 0, 64], [255, 248, 208]);
    // Hot half way down both sides, cold above, below, and in the middle, where nothing has come
    // yet.
    assert_eq!([pixel(0, 21), pixel(399, 21)], [hot; 2]);
    assert_eq!([pixel(200, 0), pixel(200, 41), pixel(200, 21), pixel(0, 0)], [cold; 4]);
    assert!(pixel(4, 21) != hot && pixel(4, 21) != cold);

    let plot = File::new("svg");
    rows(ALLTOALL, &format!("--npes 2 -b 8 -e 64 -n 5 --plot {}", plot.path().display()), &[]);
    assert!(plot.read().contains("exchange, p99"));
}

#[test]
fn fixed_messages_arrive_over_each_transport() {
    for transport in TRANSPORTS {
        // Less than a word, odd sizes, and messages that several blocks share.
        let rows =
            rows(ALLTOALL, &format!("--npes 3 -b 1 -e 9001 -f 60 -n 7 -w 2 --ctas 7 --transport {transport}"), &[]);
        let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [1, 60, 3600, 9001]);
        for row in &rows {
            assert_eq!(
                (&row["app"], &row["mode"], &row["phase"]),
                (&"alltoall".into(), &"fixed".into(), &"exchange".into())
            );
            assert!(row["us_p50"].as_f64().unwrap() <= row["us_p99"].as_f64().unwrap() && row["tokens"].is_null());
            assert_eq!((&row["transport"], row["wqes"].is_u64()), (&transport.into(), transport != "p2p"));
        }
    }
    for transport in TRANSPORTS {
        let args = format!("--via context --npes 3 -b 1 -e 9001 -f 60 -n 7 --ctas 7 --transport {transport}");
        assert!(rows(ALLTOALL, &args, &[]).iter().all(|row| row["via"] == "context"));
    }
    for transport in TRANSPORTS {
        let args = format!("--via collective --npes 3 -b 1 -e 3000 -f 60 -n 5 --transport {transport}");
        assert!(rows(ALLTOALL, &args, &[]).iter().all(|row| row["via"] == "collective" && row["ctas"] == 1));
    }
    rows(ALLTOALL, "--npes 1 -b 8 -e 8 -n 3", &[]);
    rows(ALLTOALL, "--npes 8 -b 8 -e 2K -f 256 -n 3", &[]);
}

#[test]
fn tokens_reach_their_experts_and_come_back() {
    for transport in TRANSPORTS {
        let args = format!("--mode moe --npes 3 -b 16 -e 2K -f 128 -n 4 -w 1 --tokens 13 --transport {transport}");
        let rows = rows(ALLTOALL, &args, &[]);
        let phases: Vec<_> =
            rows.iter().map(|row| (row["bytes"].as_u64().unwrap(), row["phase"].as_str().unwrap())).collect();
        assert_eq!(phases, [(16, "dispatch"), (16, "combine"), (2048, "dispatch"), (2048, "combine")]);
        assert!(rows.iter().all(|row| row["tokens"] == 13 && row["experts"] == 24 && row["top_k"] == 4));
    }
    // All experts for each token, fewer experts than PEs, one token, another seed.
    for args in [
        "--npes 2 --experts 3 --top-k 3 --tokens 5",
        "--npes 4 --experts 2 --top-k 1 --tokens 6 --transport ibgda",
        "--npes 2 --tokens 1 --seed 77",
        "--npes 1 --tokens 3",
    ] {
        rows(ALLTOALL, &format!("--mode moe {args} -b 48 -e 48 -n 3"), &[]);
    }
}

#[test]
fn collectives_leave_what_they_should() {
    for transport in TRANSPORTS {
        let rows =
            rows(COLLECTIVES, &format!("--npes 3 -b 8 -e 2008 -f 16 -n 5 -w 2 -t 40 --transport {transport}"), &[]);
        // Barrier and sync have no size, the seven others have three; in four scopes.
        assert_eq!(rows.len(), 4 * (2 + 7 * 3), "{transport}");
        for row in &rows {
            assert_eq!((&row["transport"], &row["npes"], &row["iters"]), (&transport.into(), &3.into(), &5.into()));
            assert!(row["us_p50"].as_f64().unwrap() > 0.0 && row["wqes"].is_u64() == (transport != "p2p"), "{row}");
        }
    }
    let plot = File::new("svg");
    let args = format!("--npes 2 -b 8 -e 64 -n 3 --collective reduce --scope block --plot {}", plot.path().display());
    assert!(rows(COLLECTIVES, &args, &[]).iter().all(|row| row["collective"] == "reduce" && row["scope"] == "block"));
    assert!(plot.read().contains("reduce, block"));
    rows(COLLECTIVES, "--npes 1 -b 8 -e 8 -n 2", &[]);
    for transport in TRANSPORTS {
        let args = format!("--on stream --npes 3 -b 8 -e 2008 -f 16 -n 25 -w 2 --transport {transport}");
        let rows = rows(COLLECTIVES, &args, &[]);
        assert_eq!(rows.len(), 2 + 7 * 3, "{transport}");
        for row in &rows {
            assert!(row["on"] == "stream" && row["scope"].is_null() && row["ctas"].is_null(), "{row}");
            assert!(row["us_p50"].as_f64().unwrap() > 0.0 && row["gbps"].is_f64() == (row["bytes"] != 0), "{row}");
        }
    }
}

#[test]
fn bandwidths_of_collectives_are_those_of_the_whole_buffer() {
    let plot = File::new("svg");
    for (args, on) in [("--ctas 3 -t 32", "kernel"), ("--on stream", "stream")] {
        let args = format!("{args} --npes 2 -b 4K -e 64K -f 16 -n 4 -w 1 --plot {}", plot.path().display());
        let rows = rows(COLLECTIVE_BW, &args, &[]);
        assert_eq!(rows.len(), 7 * 2);
        for row in &rows {
            let figure = |name: &str| row[name].as_f64().unwrap();
            let parts = if ["broadcast", "reduce"].iter().any(|one| row["collective"] == *one) { 1.0 } else { 2.0 };
            let gbps = parts * figure("bytes") / figure("us_p50") / 1e3;
            assert!((figure("gbps") / gbps - 1.0).abs() < 1e-9, "{row}");
            assert!((figure("bus_gbps") * parts / figure("gbps") - 1.0).abs() < 1e-9, "{row}");
            assert_eq!((&row["on"], row["ctas"].as_u64()), (&on.into(), (on == "kernel").then_some(3)));
        }
        assert!(plot.read().contains("bus bandwidth"));
    }
}

#[test]
fn wrong_results_are_errors_with_their_place() {
    for (program, args, part) in [
        (
            JACOBI,
            "--nx 20 --ny 20 --niter 3 --variant p --check serial --corrupt 5",
            "beside the serial solution, point 205:",
        ),
        (
            JACOBI,
            "--nx 20 --ny 20 --niter 3 --variant p --check single --corrupt 5",
            "beside the solution of one PE, point 205:",
        ),
        (GUPS, "--updates 50 --words 100 --via aggregate --corrupt 9", "table, word 9:"),
        (HISTOGRAM, "--keys 50 --bins 100 --via direct --corrupt 9", "table, word 9:"),
        (ALLTOALL, "-b 64 -e 64 -n 3 --corrupt 9", "what another PE sent, byte 9:"),
        (
            COLLECTIVES,
            "--collective fcollect --scope warp -b 64 -e 64 -n 3 --corrupt 9",
            "what the collective left, byte 9:",
        ),
        (
            COLLECTIVE_BW,
            "--collective reduce --on stream -b 64 -e 64 -n 3 --corrupt 9",
            "what the collective left, byte 9:",
        ),
        (ALLTOALL, "--mode moe -b 64 -e 64 -n 3 --corrupt 9", "experts made of a token, byte 9:"),
    ] {
        let json = File::new("jsonl");
        let args = format!("{args} --npes 2 --transport p2p --device cpu --json {}", json.path().display());
        let error = failure(program, &args, &[]);
        assert!(error.contains(part) && error.contains("1 of"), "{args}: {error}");
        assert!(json.read().lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["verified"] == false));
    }
}

#[test]
fn failures_of_the_network_end_the_job() {
    let faults = [("OXSHMEM_SOFT_FAULTS", "error=0x13@qp*:20"), ("OXSHMEM_TIMEOUT", "1s")];
    for (program, args) in [(JACOBI, "--nx 100 --ny 50 --niter 500"), (ALLTOALL, "-b 64 -e 64 -n 500")] {
        let error = failure(program, &format!("{args} --npes 2 --transport ibgda --device cpu"), &faults);
        assert!(error.contains("remote access"), "{error}");
    }
}

/// Runs a program of updates on two nodes of two PEs; the rows of both ways.
fn updates_on_nodes(program: &str, args: &str, network: &str) -> [Value; 2] {
    let json = File::new("jsonl");
    let args = format!("{args} --device cpu --segment 1K --age 60000000 --json {}", json.path().display());
    let mut options = LaunchOptions::new(4, program).args(args.split_whitespace()).env("OXSHMEM_NETWORK", network);
    options.nodes = 2;
    options.output = Output::Captured;
    options.timeout = Some(Duration::from_secs(100));
    let outcome = launch::run(&options).unwrap();
    assert!(outcome.is_success(), "{program} {args}: {outcome:?}");
    let rows: Vec<Value> = json.read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.try_into().unwrap_or_else(|rows| panic!("{rows:?}"))
}

/// A segment leaves when it is full, or at most twice for each `quiet` that finds it unfinished.
#[test]
fn updates_are_right_on_nodes_and_counted_by_formula() {
    for network in ["ibgda", "ibrc"] {
        for (program, args) in [
            (GUPS, "--updates 20000 --words 5000"),
            (GUPS, "--op xor --updates 20000 --words 333 --ctas 3"),
            (HISTOGRAM, "--keys 20000 --bins 10001 --skew 5"),
        ] {
            let [direct, aggregate] = updates_on_nodes(program, args, network);
            let of = |row: &Value, name: &str| row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row}"));
            for row in [&direct, &aggregate] {
                assert!(row["verified"] == true && row["nodes"] == 2 && row["npes"] == 4, "{row}");
                assert!(row["gups"].as_f64().unwrap() > 0.0, "{row}");
            }
            assert!(direct["writes"].is_null() && direct["segment"].is_null(), "{direct}");
            let (writes, bytes) = (of(&aggregate, "writes"), of(&aggregate, "record_bytes"));
            // Half of the places are on the other node, more or less.
            let far = bytes / 16;
            assert!(bytes.is_multiple_of(16) && (32_000..=48_000).contains(&far), "{aggregate}");
            // A ring in each direction; each of its two PEs calls quiet once.
            let least = bytes.div_ceil(1024);
            assert!((least..=least + 2 * (1 + 2 * 2)).contains(&writes), "{aggregate}");
            let acknowledgements = of(&aggregate, "acknowledgements");
            let requests = 2 * writes + acknowledgements;
            // Barriers before and after post a few more.
            assert!((requests..requests + 100).contains(&of(&aggregate, "wqes")), "{aggregate}");
            assert!(of(&aggregate, "payload") >= bytes && of(&aggregate, "payload") < bytes + 8 * (requests + 100));
            // Adjacent words that lanes happen to put together share a request.
            assert!(of(&direct, "wqes") >= far * 9 / 10, "{direct}, {far}");
            assert!(of(&direct, "wqes") > 15 * of(&aggregate, "wqes"), "{direct} {aggregate}");
        }
    }
}

#[test]
fn updates_are_right_over_each_transport() {
    let faults = [("OXSHMEM_SOFT_FAULTS", "seed=7,reorder=0.5,visibility")];
    for transport in TRANSPORTS {
        for env in [&[][..], &faults] {
            let gups = rows(GUPS, &format!("--npes 3 --updates 3000 --words 700 --transport {transport}"), env);
            let ways: Vec<&str> = gups.iter().map(|row| row["via"].as_str().unwrap()).collect();
            assert_eq!(ways, ["direct", "aggregate"]);
            let args = format!("--npes 3 --keys 3000 --bins 10 --skew 3 --via aggregate --transport {transport}");
            assert_eq!(rows(HISTOGRAM, &args, env).len(), 1);
        }
    }
}

#[test]
fn options_of_updates_are_checked() {
    let error = failure(GUPS, "--segment 3K --npes 2", &[]);
    assert!(error.contains("segment size 3072 is invalid"), "{error}");
    let error = failure(HISTOGRAM, "--age 60000001 --npes 2", &[]);
    assert!(error.contains("age 60.000001s is invalid"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    for (program, args, part) in [
        (JACOBI, "--npes 9 --ny 10", "at most 8 PEs"),
        (JACOBI, "--nx 1000000 --ny 1000000 --check off", "OXSHMEM_HEAP_MAX"),
        (JACOBI, "--variant get", "--variant"),
        (JACOBI, "--plot a.svg", ".png"),
        (JACOBI, "--qps 0", "OXSHMEM_QPS_PER_PEER=0"),
        (ALLTOALL, "--mode some", "--mode"),
        (ALLTOALL, "--transport warp", "auto, p2p, ibgda or ibrc"),
        (ALLTOALL, "--mode moe --experts 2 --top-k 3", "only 2 experts"),
        (ALLTOALL, "--hca null --transport ibgda", "moves nothing"),
        (GUPS, "--hca null --transport ibgda", "moves nothing"),
        (HISTOGRAM, "--hca null --transport ibgda", "moves nothing"),
        (JACOBI, "--scaling weak --npes 8 --nx 20000 --ny 20000 --check single", "20000 x 159986 points on 8 PEs"),
        (ALLTOALL, "--mode moe --via collective", "--mode fixed"),
        (COLLECTIVES, "-b 12 -e 12", "multiples of 8"),
        (COLLECTIVES, "--collective gather", "--collective"),
        (COLLECTIVES, "--on stream --scope grid", "on a stream the library chooses"),
        (COLLECTIVE_BW, "--collective barrier", "has no bandwidth"),
    ] {
        let output = run(program, args, &[]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {error}");
        assert!(error.contains(part) && output.stdout.is_empty(), "{args}: {error}");
    }
}

#[test]
fn what_does_not_fit_or_is_not_there_is_one_clear_line() {
    let error =
        failure(JACOBI, "--npes 2 --nx 4096 --ny 4096", &[("OXSHMEM_HEAP_MAX", "16M"), ("OXSHMEM_HEAP_CHUNK", "1M")]);
    assert!(error.contains("67141632 bytes") && error.contains("OXSHMEM_HEAP_MAX is 16M"), "{error}");
    for program in [JACOBI, ALLTOALL, GUPS, HISTOGRAM] {
        let error = failure(program, "--npes 2 --hca mlx5 --transport p2p --device cpu", &[]);
        assert!(error.contains("mlx5") && error.trim_end().lines().count() == 1, "{error}");
    }
}
