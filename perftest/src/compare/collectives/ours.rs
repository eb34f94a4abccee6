//! A PE of ours: it joins the job of a unique id, and measures what the lines of its standard input
//! say.

use std::cell::Cell;
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Instant;

use half::bf16;
use oxshmem::bootstrap::UniqueId;
use oxshmem::{Config, OnStream, Operations, Pe, ReduceOp, Stream, SymmetricSlice};

use super::calls::{Call, Element};
use super::graph::Graph;
use super::protocol::{Command, Reply};
use crate::collectives::Collective;
use crate::error::Error;
use crate::output;
use crate::pattern::{self, chunks};

/// What results hold before a call.
const BEFORE: u8 = 0xff;

/// Runs the part of a PE: its arguments are the job's unique id, its number, that of PEs, and the
/// bytes of the largest buffer.
pub fn main(arguments: &[String]) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn reply(reply: &Reply) -> Result<(), Error> {
    output::line(format_args!("{}", reply.line()))
}

fn serve(arguments: &[String]) -> Result<(), Error> {
    let wrong = || Error::Usage("a PE of the comparison is started by it alone: ID RANK NPES BYTES".to_owned());
    let [id, rank, npes, most] = arguments else { return Err(wrong()) };
    let number = |text: &String| text.parse::<u32>().map_err(|_| wrong());
    let id: UniqueId = id.parse().map_err(Error::Usage)?;
    let config = Config::builder().env().unique_id(&id, number(rank)?, number(npes)?).build()?;
    let most: u64 = most.parse().map_err(|_| wrong())?;
    let pe = Pe::with_config(config)?;
    let session = Session {
        stream: pe.create_stream()?,
        dst: pe.alloc_aligned(most as usize, 256)?,
        src: pe.alloc_aligned(most as usize, 256)?,
        given: Cell::new(None),
        pe: &pe,
    };
    reply(&Reply::Library { library: format!("OxSHMEM {}", env!("CARGO_PKG_VERSION")) })?;
    let mut prepared = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|source| Error::System { what: "reading standard input", source })?;
        let said = match Command::parse(&line) {
            Some(Command::Prepare { call, part, count, .. }) => {
                // The graph of before goes away first.
                drop(prepared.take());
                session.prepare(call, part, count).map(|ready| {
                    let graph = ready.graph.is_some();
                    prepared = Some(ready);
                    Reply::Ready { ready: true, graph }
                })
            }
            Some(Command::Run { .. }) => match &prepared {
                Some(ready) => session.run(ready).map(|ns| Reply::Time { ns }),
                None => Err(Error::Usage("nothing is prepared".to_owned())),
            },
            None => Err(Error::Usage(format!("an unknown command: {line}"))),
        };
        reply(&said.unwrap_or_else(|error| Reply::Error { error: error.to_string() }))?;
    }
    drop(prepared);
    let Session { dst, src, .. } = session;
    [dst, src].into_iter().try_for_each(|slice| pe.free(slice))?;
    Ok(pe.finalize()?)
}

/// Calls that can be timed.
struct Prepared {
    call: Call,
    part: u64,
    count: u64,
    /// On a GPU.
    graph: Option<Graph>,
}

struct Session<'a> {
    pe: &'a Pe,
    stream: Stream,
    dst: SymmetricSlice<u8>,
    src: SymmetricSlice<u8>,
    /// What the source consists of now.
    given: Cell<Option<Element>>,
}

impl Session<'_> {
    fn ids(&self) -> (u64, u64) {
        (self.pe.my_pe() as u64, self.pe.n_pes() as u64)
    }

    /// Makes `count` calls ready, makes them once, and checks what the last of them has left.
    /// Collective.
    fn prepare(&self, call: Call, part: u64, count: u64) -> Result<Prepared, Error> {
        let (pe, (me, npes)) = (self.pe, self.ids());
        let element = call.element.bytes();
        let got = call.collective.result_bytes(part, npes);
        let needed = call.collective.source_bytes(part, npes).max(got);
        if needed > self.src.len() as u64 {
            let room = self.src.len();
            return Err(Error::Usage(format!("{} needs {needed} bytes, and buffers have {room}", call.name)));
        }
        if self.given.replace(Some(call.element)) != Some(call.element) {
            for (at, bytes) in chunks(self.src.len() as u64) {
                let data = call.given(me, at / element, bytes / element);
                pe.write(self.src.view(at as usize..at as usize + data.len()), &data)?;
            }
        }
        for (at, bytes) in chunks(got) {
            pe.write(self.dst.view(at as usize..(at + bytes) as usize), &vec![BEFORE; bytes as usize])?;
        }
        pe.barrier_all()?;

        let on = pe.on(&self.stream);
        let queue = || (0..count).try_for_each(|_| self.queue(&on, call, part));
        let graph = match pe.gpu().zip(self.stream.raw()) {
            // SAFETY: both live until the PE is finalized, after all graphs have gone.
            Some((gpu, stream)) => Some(unsafe { Graph::capture(gpu.context, stream, queue) }?),
            None => None,
        };
        match &graph {
            Some(graph) => graph.launch()?,
            None => queue()?,
        }
        on.synchronize()?;
        for (at, bytes) in chunks(got) {
            let expected = call.result((me, npes), part, (at / element, bytes / element));
            let found = pe.read(self.dst.view(at as usize..(at + bytes) as usize))?;
            pattern::check("what the collective left", &expected, &found)?;
        }
        Ok(Prepared { call, part, count, graph })
    }

    /// Returns the nanoseconds of all calls, which begin when those of a round before have ended at
    /// all PEs. Collective.
    fn run(&self, ready: &Prepared) -> Result<f64, Error> {
        let on = self.pe.on(&self.stream);
        let Some(graph) = &ready.graph else {
            self.queue(&on, ready.call, ready.part)?;
            on.synchronize()?;
            let begin = Instant::now();
            (0..ready.count).try_for_each(|_| self.queue(&on, ready.call, ready.part))?;
            on.synchronize()?;
            return Ok(begin.elapsed().as_nanos() as f64);
        };
        graph.launch()?;
        graph.launch_timed()?;
        on.synchronize()?;
        graph.nanoseconds()
    }

    fn queue(&self, on: &OnStream<'_>, call: Call, part: u64) -> Result<(), Error> {
        let (pe, team, npes) = (self.pe, self.pe.team_world(), self.pe.n_pes() as u64);
        let given = call.collective.source_bytes(part, npes) as usize;
        let got = call.collective.result_bytes(part, npes) as usize;
        let (dst, src) = (self.dst.view(..got), self.src.view(..given));
        let (to, from) = (self.dst.address(), self.src.address());
        match (call.collective, call.element) {
            (Collective::Barrier, _) => on.barrier(&team)?,
            (Collective::Sync, _) => on.team_sync(&team)?,
            (Collective::Broadcast, _) => on.broadcast(&team, dst, src, 0)?,
            (Collective::Fcollect, _) => on.fcollect(&team, dst, src)?,
            (Collective::Alltoall, _) => on.alltoall(&team, dst, src, part as usize)?,
            (Collective::Reduce, Element::Float) => {
                let (dst, src) = (pe.view_at::<f32>(to, got / 4), pe.view_at::<f32>(from, given / 4));
                on.reduce(&team, ReduceOp::Sum, dst, src)?;
            }
            (Collective::Reduce, Element::Bfloat16) => {
                let (dst, src) = (pe.view_at::<bf16>(to, got / 2), pe.view_at::<bf16>(from, given / 2));
                on.reduce(&team, ReduceOp::Sum, dst, src)?;
            }
            (Collective::Reducescatter, _) => {
                let (dst, src) = (pe.view_at::<f32>(to, got / 4), pe.view_at::<f32>(from, given / 4));
                on.reducescatter(&team, ReduceOp::Sum, dst, src)?;
            }
            (Collective::Collect | Collective::Alltoalls, _) => {
                return Err(Error::Usage(format!("{}: a call that is not compared", call.name)));
            }
        }
        Ok(())
    }
}
