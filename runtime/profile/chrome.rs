//! Traces in the format of Chrome, which Perfetto (ui.perfetto.dev) opens: "Trace Event Format",
//! JSON object format.
//!
//! A PE is a process of the trace. Its host is one track, and each thread of device code another.
//! Requests that are under way are asynchronous events from posting to completion, with an instant
//! for the doorbell.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::trace::{Origin, Trace, TraceCall};

/// Times of a trace count from the last full hour of this many nanoseconds before it began, since a
/// double does not hold nanoseconds since 1970.
const HOUR: u64 = 3600 * 1_000_000_000;

/// Where a trace comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maker {
    pub pe: usize,
    pub n_pes: usize,
    pub device: &'static str,
    /// What is added to `CLOCK_MONOTONIC` to get the time since 1970, in nanoseconds.
    pub to_unix: u64,
}

/// Returns a trace as a value to write as JSON.
pub(crate) fn json(maker: &Maker, trace: &Trace) -> Value {
    let first = trace.calls.first().map_or(0, |call| call.begin_ns) + maker.to_unix;
    let base = first - first % HOUR;
    let micros = |at: u64| (at + maker.to_unix).saturating_sub(base) as f64 / 1e3;
    let pid = maker.pe;
    let mut events = vec![name("process_name", pid, 0, &format!("PE {pid}")), name("thread_name", pid, 0, "host")];
    let mut tracks: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (block, thread) in trace.calls.iter().filter_map(|call| call.thread) {
        let next = tracks.len() + 1;
        tracks.entry((block, thread)).or_insert_with(|| {
            events.push(name("thread_name", pid, next, &format!("block {block} thread {thread}")));
            next
        });
    }
    for (id, call) in trace.calls.iter().enumerate() {
        let tid = call.thread.map_or(0, |thread| tracks[&thread]);
        let (ts, dur) = (micros(call.begin_ns), (call.end_ns - call.begin_ns) as f64 / 1e3);
        let label = call.detail.as_deref().unwrap_or(call.operation);
        let arguments = arguments(call, micros);
        let cat = if call.origin == Origin::Host { "host" } else { "device" };
        events.push(json!({
            "name": label, "cat": cat, "ph": "X", "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": arguments,
        }));
        if let Some(completion) = call.completion_ns {
            let event = |ph: &str, at: f64| {
                json!({
                    "name": label, "cat": "request", "ph": ph, "id": id, "ts": at, "pid": pid, "tid": tid,
                    "args": { "pe": call.pe, "bytes": call.bytes },
                })
            };
            events.push(event("b", ts));
            events.extend(call.doorbell_ns.map(|doorbell| event("n", micros(doorbell))));
            events.push(event("e", micros(completion)));
        }
    }
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "library": "OxSHMEM", "version": env!("CARGO_PKG_VERSION"), "pe": pid, "n_pes": maker.n_pes,
            "device": maker.device, "dropped": trace.dropped, "base_unix_ns": base,
        },
    })
}

/// Returns the event that names a process or a thread.
fn name(what: &str, pid: usize, tid: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": pid, "tid": tid, "args": { "name": name } })
}

/// Returns what is known of a call beside its name and times. `oxshmem-info trace` reads it.
fn arguments(call: &TraceCall, micros: impl Fn(u64) -> f64) -> Value {
    json!({
        "operation": call.operation, "pe": call.pe, "team": call.team, "bytes": call.bytes, "posts": call.posts,
        "doorbell_us": call.doorbell_ns.map(&micros), "completion_us": call.completion_ns.map(&micros),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_slices_and_requests_are_asynchronous() {
        let call = |origin, thread, completion_ns: Option<u64>| TraceCall {
            origin,
            operation: "put",
            detail: None,
            pe: Some(1),
            team: None,
            bytes: 64,
            begin_ns: 5_000,
            end_ns: 7_500,
            thread,
            posts: 1,
            doorbell_ns: completion_ns.map(|_| 6_000),
            completion_ns,
        };
        let calls = vec![call(Origin::Host, None, None), call(Origin::Device, Some((2, 32)), Some(9_000))];
        let maker = Maker { pe: 3, n_pes: 4, device: "cpu", to_unix: 7 * HOUR };
        let json = json(&maker, &Trace { calls, dropped: 5 });
        let events = json["traceEvents"].as_array().unwrap();
        let phases: Vec<&str> = events.iter().map(|event| event["ph"].as_str().unwrap()).collect();
        assert_eq!(phases, ["M", "M", "M", "X", "X", "b", "n", "e"]);
        assert_eq!((events[4]["ts"].as_f64(), events[4]["dur"].as_f64()), (Some(5.0), Some(2.5)));
        assert_eq!(events[4]["args"]["completion_us"], 9.0);
        assert_eq!(events[2]["args"]["name"], "block 2 thread 32");
        assert!(events.iter().all(|event| event["pid"] == 3));
        assert_eq!(
            (json["otherData"]["dropped"].as_u64(), json["otherData"]["base_unix_ns"].as_u64()),
            (Some(5), Some(7 * HOUR))
        );
    }
}
