//! The conversation with a PMI: both versions of it.

use super::super::start::PmiStart;
use super::wire::{Fields, Wire, WireError};

/// What PMI-1 allows if the launcher does not say more (MPICH's `pmi-1.1.txt`).
const LEAST_VALUE: usize = 1024;
/// The longest value of PMI-2 (`PMI2_MAX_VALLEN`).
const PMI2_VALUE: usize = 1024;

/// A PMI that has been initialised.
#[derive(Debug)]
pub struct Talk {
    wire: Wire,
    dialect: Dialect,
    /// The longest value.
    limit: usize,
}

#[derive(Debug)]
enum Dialect {
    /// PMI-1, with the name of the key-value space.
    One(String),
    /// PMI-2, with the job's name.
    Two(String),
}

impl Talk {
    /// Agrees on the version and initialises.
    pub fn begin(mut wire: Wire, start: &PmiStart) -> Result<Self, WireError> {
        let mut reply = init(&mut wire, 2)?;
        if !is_ok(&reply) {
            reply = init(&mut wire, 1)?;
        }
        let request = "init";
        refuse(request, &reply)?;
        match reply.get("pmi_version") {
            Some("2") => Self::two(wire, start),
            Some("1") => Self::one(wire),
            other => {
                let reason =
                    format!("the launcher speaks version '{}', and OxSHMEM 1 and 2", other.unwrap_or_default());
                Err(WireError::Refused { request, reason })
            }
        }
    }

    fn one(mut wire: Wire) -> Result<Self, WireError> {
        let maxes = line(&mut wire, "get_maxes", "", "maxes")?;
        let limit = maxes.get("vallen_max").and_then(|limit| limit.parse().ok()).unwrap_or(LEAST_VALUE);
        let reply = line(&mut wire, "get_my_kvsname", "", "my_kvsname")?;
        let name = reply.get("kvsname").ok_or_else(|| missing("get_my_kvsname", "kvsname"))?;
        Ok(Self { dialect: Dialect::One(name.to_owned()), wire, limit })
    }

    fn two(mut wire: Wire, start: &PmiStart) -> Result<Self, WireError> {
        let PmiStart { rank, job, .. } = start;
        let body = format!("pmijobid={job};pmirank={rank};threaded=FALSE;");
        let reply = message(&mut wire, "fullinit", &body)?;
        for (field, expected) in [("rank", *rank), ("size", start.npes)] {
            if let Some(said) = reply.get(field).filter(|said| said.parse() != Ok(expected)) {
                let reason = format!("the launcher says {field} {said}, and the environment {expected}");
                return Err(WireError::Refused { request: "fullinit", reason });
            }
        }
        let reply = message(&mut wire, "job-getid", "")?;
        let job = reply.get("jobid").unwrap_or(job).to_owned();
        Ok(Self { dialect: Dialect::Two(job), wire, limit: PMI2_VALUE })
    }

    /// Publishes a value if this PE has one, waits for all PEs, and returns the value.
    pub fn exchange(&mut self, key: &str, value: Option<&str>) -> Result<String, WireError> {
        // PMI-1 counts a 0 at the end.
        if let Some(value) = value.filter(|value| value.len() >= self.limit) {
            return Err(WireError::TooLong { length: value.len(), limit: self.limit - 1 });
        }
        let wire = &mut self.wire;
        let reply = match &self.dialect {
            Dialect::One(name) => {
                if let Some(value) = value {
                    line(wire, "put", &format!(" kvsname={name} key={key} value={value}"), "put_result")?;
                }
                line(wire, "barrier_in", "", "barrier_out")?;
                line(wire, "get", &format!(" kvsname={name} key={key}"), "get_result")?
            }
            Dialect::Two(job) => {
                if let Some(value) = value {
                    message(wire, "kvs-put", &format!("key={key};value={};", value.replace(';', ";;")))?;
                }
                message(wire, "kvs-fence", "")?;
                message(wire, "kvs-get", &format!("jobid={job};srcid=-1;key={key};"))?
            }
        };
        reply.get("value").map(str::to_owned).ok_or_else(|| missing("get", "value"))
    }

    /// Leaves the PMI in order, so that the launcher does not take this process's end for an abort.
    pub fn finalize(mut self) -> Result<(), WireError> {
        match &self.dialect {
            Dialect::One(_) => line(&mut self.wire, "finalize", "", "finalize_ack")?,
            Dialect::Two(_) => message(&mut self.wire, "finalize", "")?,
        };
        Ok(())
    }
}

fn init(wire: &mut Wire, version: u32) -> Result<Fields, WireError> {
    let subversion = if version == 1 { 1 } else { 0 };
    wire.send_line(&format!("cmd=init pmi_version={version} pmi_subversion={subversion}"))?;
    let reply = wire.line("init")?;
    expect(&reply, "init", "response_to_init")?;
    Ok(reply)
}

/// Sends a request of PMI-1 and receives its reply.
fn line(wire: &mut Wire, request: &'static str, arguments: &str, reply: &str) -> Result<Fields, WireError> {
    wire.send_line(&format!("cmd={request}{arguments}"))?;
    let fields = wire.line(request)?;
    expect(&fields, request, reply)?;
    refuse(request, &fields)?;
    Ok(fields)
}

/// Sends a request of PMI-2 and receives its reply.
fn message(wire: &mut Wire, request: &'static str, arguments: &str) -> Result<Fields, WireError> {
    wire.send_message(&format!("cmd={request};{arguments}"))?;
    let fields = wire.message(request)?;
    expect(&fields, request, &format!("{request}-response"))?;
    refuse(request, &fields)?;
    Ok(fields)
}

fn expect(fields: &Fields, request: &str, reply: &str) -> Result<(), WireError> {
    match fields.get("cmd") {
        Some(cmd) if cmd == reply => Ok(()),
        cmd => Err(WireError::Garbage(format!("the reply to {request} is '{}'", cmd.unwrap_or_default()))),
    }
}

fn is_ok(reply: &Fields) -> bool {
    reply.get("rc").is_none_or(|rc| rc == "0")
}

fn refuse(request: &'static str, reply: &Fields) -> Result<(), WireError> {
    if is_ok(reply) {
        return Ok(());
    }
    let said = reply.get("errmsg").or_else(|| reply.get("msg")).unwrap_or("no reason given");
    let reason = format!("{said} (rc={})", reply.get("rc").unwrap_or_default());
    Err(WireError::Refused { request, reason })
}

fn missing(request: &'static str, field: &str) -> WireError {
    WireError::Garbage(format!("the reply to {request} has no {field}"))
}
