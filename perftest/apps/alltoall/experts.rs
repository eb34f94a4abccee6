//! A mixture of experts: tokens go to the PEs of the experts that were chosen for them, and what
//! those make of them comes back and is added up.

use oxshmem::{LaunchConfig, SymmetricSlice};
use oxshmem_perftest::error::{Error, Mismatch};
use oxshmem_perftest::pattern::{self, word};
use oxshmem_perftest::report::Posted;

use crate::report::Row;
use crate::routing::Routing;
use crate::session::{Phase, Session, Words};

/// Tokens, and where they come and go, of one PE.
pub struct Experts<'a, 'b> {
    session: &'b Session<'a>,
    routing: Routing,
    tokens: SymmetricSlice<u8>,
    inbox: SymmetricSlice<u8>,
    labels: SymmetricSlice<u64>,
    returned: SymmetricSlice<u8>,
    output: SymmetricSlice<u8>,
    chosen: SymmetricSlice<u32>,
    owners: SymmetricSlice<u32>,
    /// By PE: what has arrived, what was answered, places taken, and tokens that came.
    words: SymmetricSlice<u64>,
    times: SymmetricSlice<u64>,
    /// Iterations so far.
    base: u64,
}

impl<'a, 'b> Experts<'a, 'b> {
    /// Chooses experts, and allocates for the largest token. Collective.
    ///
    /// # Errors
    /// No memory.
    pub fn new(session: &'b Session<'a>) -> Result<Self, Error> {
        let (pe, plan) = (session.pe, session.plan);
        let npes = pe.n_pes();
        let routing = session.options.routing(npes)?;
        let bytes = plan.sizes.last().copied().unwrap_or_default();
        let room = |tokens: u64| usize::try_from(tokens.saturating_mul(bytes)).unwrap_or(usize::MAX);
        let choices = routing.tokens * routing.top;
        let places = routing.capacity().saturating_mul(npes as u64);
        let experts = Self {
            session,
            routing,
            tokens: pe.alloc_aligned(room(routing.tokens), 256)?,
            inbox: pe.alloc_aligned(room(places), 256)?,
            labels: pe.alloc_aligned(places as usize, 128)?,
            returned: pe.alloc_aligned(room(choices), 256)?,
            output: pe.alloc_aligned(room(routing.tokens), 256)?,
            chosen: pe.alloc(choices as usize)?,
            owners: pe.alloc(routing.experts as usize)?,
            words: pe.alloc_aligned(4 * npes, 128)?,
            times: pe.alloc(2 * plan.iters.max(session.options.warmup) as usize)?,
            base: 0,
        };
        pe.write(&experts.chosen, &routing.chosen(pe.my_pe()))?;
        pe.write(&experts.owners, &routing.owners())?;
        Ok(experts)
    }

    /// Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        let pe = self.session.pe;
        [self.tokens, self.inbox, self.returned, self.output].into_iter().try_for_each(|slice| pe.free(slice))?;
        [self.labels, self.words, self.times].into_iter().try_for_each(|slice| pe.free(slice))?;
        [self.chosen, self.owners].into_iter().try_for_each(|slice| pe.free(slice))?;
        Ok(())
    }

    /// Measures tokens of one size. PE 0 gets the rows; it and the PEs that found wrong data get
    /// that as an error beside them. Collective.
    ///
    /// # Errors
    /// Anything but wrong data.
    pub fn run(&mut self, bytes: u64) -> Result<(Vec<Row>, Option<Error>), Error> {
        let (session, pe, routing) = (self.session, self.session.pe, self.routing);
        let (me, npes) = (pe.my_pe(), pe.n_pes());
        pe.write(&self.tokens, &tokens(bytes, me, routing.tokens))?;
        if session.options.warmup != 0 {
            self.launch(bytes, session.options.warmup)?;
        }
        // What is not overwritten is wrong.
        pe.write(&self.output, &vec![0xff; (routing.tokens * bytes) as usize])?;
        pe.write(&self.labels, &vec![u64::MAX; routing.capacity() as usize * npes])?;
        let before = Posted::so_far(pe)?;
        let iters = session.plan.iters;
        self.launch(bytes, iters)?;
        let posted = Posted::so_far(pe)?.since(before);

        let wrong = session.verdicts.gather(self.check(bytes))?;
        if me != 0 {
            return Ok((Vec::new(), wrong));
        }
        let times = pe.read(self.times.view(..2 * iters as usize))?;
        let (dispatch, combine): (Vec<u64>, Vec<u64>) =
            times.as_chunks::<2>().0.iter().map(|[dispatch, combine]| (*dispatch, *combine)).unzip();
        let owners = routing.owners();
        let elsewhere = |pe: usize| {
            routing
                .chosen(pe)
                .iter()
                .map(|expert| owners[*expert as usize] as usize)
                .filter(|owner| *owner != pe)
                .count()
        };
        // PE 0 processes what the others have sent to it, and sends it back.
        let answered: usize =
            (1..npes).map(|pe| routing.chosen(pe).iter().filter(|expert| owners[**expert as usize] == 0).count()).sum();
        let rows = [("dispatch", elsewhere(0), dispatch), ("combine", answered, combine)].map(|(name, sent, times)| {
            let phase = Phase { name, shape: self.shape(), bytes, sent: sent as u64 * bytes, times: &times };
            session.row(&phase, posted, wrong.is_none())
        });
        Ok((rows.into(), wrong))
    }

    fn shape(&self) -> LaunchConfig {
        LaunchConfig::linear(self.session.plan.ctas, self.session.plan.threads)
    }

    fn launch(&mut self, bytes: u64, iters: u64) -> Result<(), Error> {
        let npes = self.session.pe.n_pes();
        let by_pe = |index: usize| self.words.address() + (8 * index * npes) as u64;
        let words = Words([
            self.tokens.address(),
            self.inbox.address(),
            self.labels.address(),
            self.returned.address(),
            self.output.address(),
            self.chosen.address(),
            self.owners.address(),
            by_pe(0),
            by_pe(1),
            by_pe(2),
            self.session.arrivals.address(),
            self.times.address(),
            by_pe(3),
            self.routing.tokens,
            bytes,
            self.routing.top,
            self.routing.capacity(),
            iters,
            self.base,
        ]);
        self.session.launch("experts", self.shape(), words)?;
        self.base += iters;
        Ok(())
    }

    /// What the last iteration has left: every token that was sent to this PE's experts, each once,
    /// as they have changed it; and the sum of what they made of this PE's tokens.
    fn check(&self, bytes: u64) -> Result<(), Error> {
        let (pe, routing) = (self.session.pe, self.routing);
        let (me, npes, capacity) = (pe.my_pe(), pe.n_pes(), routing.capacity() as usize);
        let turn = self.base - 1;
        let mine = routing.experts_of(me);
        let counts = pe.read(self.words.view(3 * npes..4 * npes))?;
        for sender in 0..npes {
            let sent = tokens(bytes, sender, routing.tokens);
            let expected: Vec<u64> = (0u64..)
                .zip(routing.chosen(sender))
                .filter(|(_, expert)| mine.contains(&u64::from(*expert)))
                .map(|(choice, expert)| choice << 32 | u64::from(expert))
                .collect();
            pattern::check_words(
                "how many tokens another PE sent",
                &[expected.len() as u64],
                &counts[sender..=sender],
            )?;
            let at = sender * capacity;
            let labels = pe.read(self.labels.view(at..at + expected.len()))?;
            let mut sorted = labels.clone();
            sorted.sort_unstable();
            pattern::check_words("which tokens another PE sent", &expected, &sorted)?;
            for (slot, label) in labels.iter().enumerate() {
                let (choice, expert) = (label >> 32, *label as u32);
                let token = (choice / routing.top * bytes) as usize;
                let at = (at + slot) * bytes as usize;
                let found = pe.read(self.inbox.view(at..at + bytes as usize))?;
                let expected = changed(&sent[token..][..bytes as usize], expertise(expert, turn));
                pattern::check("a token that another PE sent", &expected, &found)?;
            }
        }
        let own = tokens(bytes, me, routing.tokens);
        let mut found = pe.read(self.output.view(..own.len()))?;
        if let Some(byte) = self.session.options.corrupt.filter(|_| me == 0) {
            found.iter_mut().skip(byte as usize).take(1).for_each(|byte| *byte ^= 1);
        }
        let chosen = routing.chosen(me);
        let sums = own.chunks_exact(bytes as usize).zip(chosen.chunks_exact(routing.top as usize)).flat_map(
            |(token, experts)| {
                // Each adds something to the token, and all results are added.
                let more = experts.iter().fold(0u32, |sum, expert| sum.wrapping_add(expertise(*expert, turn)));
                words_of(token)
                    .map(move |word| word.wrapping_mul(routing.top as u32).wrapping_add(more))
                    .collect::<Vec<_>>()
            },
        );
        let expected: Vec<u8> = sums.flat_map(u32::to_ne_bytes).collect();
        pattern::check("the sum of what experts made of a token", &expected, &found).map_err(Mismatch::into)
    }
}

/// Returns what an expert adds to each word of a token in iteration `turn`; `kernels.cu` has the
/// same.
fn expertise(expert: u32, turn: u64) -> u32 {
    word(u64::from(expert), turn, 0) as u32
}

/// Returns the tokens of a PE.
fn tokens(bytes: u64, pe: usize, n: u64) -> Vec<u8> {
    pattern::source(pattern::seed("tokens", &pe.to_string(), bytes), (bytes * n) as usize)
}

fn words_of(token: &[u8]) -> impl Iterator<Item = u32> {
    token.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word))
}

fn changed(token: &[u8], more: u32) -> Vec<u8> {
    words_of(token).flat_map(|word| word.wrapping_add(more).to_ne_bytes()).collect()
}
