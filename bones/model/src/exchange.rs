//! What ranks exchange when they are threads of one process: activations, by way of host memory.
//!
//! A backend holds the [`Link`] of its rank and implements its operations between ranks with it. A wait ends when the
//! others have come or when any rank has failed: [`Link::abort`] wakes everyone with an error, after which the links
//! are of no further use. Nobody spins. Running ranks, and aborting for one that failed, is left to [`crate::crew`].

use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};

/// Why an exchange did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// A rank failed, maybe another one; its own error says why.
    #[error("exchange aborted: a rank failed")]
    Aborted,
    /// Ranks that brought different amounts: a defect of a backend.
    #[error("exchange: rank {rank} brings {have} values, must bring {want}")]
    Mismatch {
        /// Tensor rank.
        rank: usize,
        /// What it brought.
        have: usize,
        /// What was needed.
        want: usize,
    },
}

/// Where a rank stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its pipeline stage.
    pub stage: usize,
    /// How many stages there are.
    pub stages: usize,
    /// Its number among the ranks that share its stage's layers.
    pub tensor_rank: usize,
    /// How many share a stage.
    pub tensor_ranks: usize,
}

impl Place {
    /// Every place, stage by stage: the order in which ranks are counted.
    pub fn all(stages: usize, tensor_ranks: usize) -> impl Iterator<Item = Self> {
        (0..stages * tensor_ranks).map(move |rank| Self {
            stage: rank / tensor_ranks,
            stages,
            tensor_rank: rank % tensor_ranks,
            tensor_ranks,
        })
    }

    /// Number among all ranks.
    pub fn rank(&self) -> usize {
        self.stage * self.tensor_ranks + self.tensor_rank
    }

    /// Whether it takes tokens.
    pub fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Whether it gives logits.
    pub fn is_last(&self) -> bool {
        self.stage + 1 == self.stages
    }

    /// Whether it samples.
    pub fn is_sampler(&self) -> bool {
        self.is_last() && self.tensor_rank == 0
    }
}

/// One rank's end of the exchange.
#[derive(Clone)]
pub struct Link {
    place: Place,
    fabric: Arc<Fabric>,
}

struct Fabric {
    state: Mutex<State>,
    changed: Condvar,
    /// For each rank, what it brings to a meeting. Two, used in turn: who is slow still reads the one while who is fast
    /// fills the other; nobody can be further ahead, for the next meeting waits for all.
    slots: Vec<[RwLock<Vec<f32>>; 2]>,
    /// For each rank, what it sends to the next stage.
    parcels: Vec<Mutex<Vec<f32>>>,
}

struct State {
    /// For each stage.
    meetings: Vec<Meeting>,
    /// For each rank, whether its parcel waits to be fetched.
    is_sent: Vec<bool>,
    /// The rank that failed first.
    failed: Option<usize>,
}

#[derive(Clone, Default)]
struct Meeting {
    arrived: usize,
    turn: usize,
}

impl Link {
    /// The links of all ranks, in the order of [`Place::all`].
    pub fn connect(stages: usize, tensor_ranks: usize) -> Vec<Self> {
        let ranks = stages * tensor_ranks;
        let fabric = Arc::new(Fabric {
            state: Mutex::new(State {
                meetings: vec![Meeting::default(); stages],
                is_sent: vec![false; ranks],
                failed: None,
            }),
            changed: Condvar::new(),
            slots: (0..ranks).map(|_| Default::default()).collect(),
            parcels: (0..ranks).map(|_| Mutex::default()).collect(),
        });
        Place::all(stages, tensor_ranks).map(|place| Self { place, fabric: Arc::clone(&fabric) }).collect()
    }

    /// The link of a rank that has no other.
    pub fn alone() -> Self {
        Self::connect(1, 1).swap_remove(0)
    }

    /// Where its rank stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Sums over the tensor ranks, in their order: every one of them gets the same bits.
    pub fn all_reduce(&self, x: &mut [f32]) -> Result<(), ExchangeError> {
        if self.place.tensor_ranks == 1 {
            return Ok(());
        }
        let turn = self.meet(x)?;
        for rank in 0..self.place.tensor_ranks {
            let slot = self.slot(rank, turn).read().map_err(|_| ExchangeError::Aborted)?;
            if slot.len() != x.len() {
                return Err(ExchangeError::Mismatch { rank, have: slot.len(), want: x.len() });
            }
            if rank == 0 {
                x.copy_from_slice(&slot);
            } else {
                x.iter_mut().zip(&*slot).for_each(|(x, y)| *x += y);
            }
        }
        Ok(())
    }

    /// Puts the tensor ranks' columns of `rows` rows side by side into rank 0's `out`.
    pub fn gather_columns(&self, x: &[f32], rows: usize, out: &mut [f32]) -> Result<(), ExchangeError> {
        let turn = self.meet(x)?;
        if self.place.tensor_rank != 0 || rows == 0 {
            return Ok(());
        }
        let width = out.len() / rows;
        let mut column = 0;
        for rank in 0..self.place.tensor_ranks {
            let slot = self.slot(rank, turn).read().map_err(|_| ExchangeError::Aborted)?;
            let (part, is_last) = (slot.len() / rows, rank + 1 == self.place.tensor_ranks);
            if part * rows != slot.len() || column + part > width || is_last && column + part != width {
                return Err(ExchangeError::Mismatch { rank, have: slot.len(), want: (width - column) * rows });
            }
            for (out, x) in out.chunks_exact_mut(width).zip(slot.chunks_exact(part.max(1))) {
                out[column..column + part].copy_from_slice(x);
            }
            column += part;
        }
        Ok(())
    }

    /// Hands `x` to the same tensor rank of the next stage.
    pub fn send(&self, x: &[f32]) -> Result<(), ExchangeError> {
        let rank = self.place.rank();
        drop(self.wait(|state| !state.is_sent[rank])?);
        let mut parcel = self.fabric.parcels[rank].lock().map_err(|_| ExchangeError::Aborted)?;
        parcel.clear();
        parcel.extend_from_slice(x);
        drop(parcel);
        self.change(|state| state.is_sent[rank] = true)
    }

    /// What the same tensor rank of the stage before sent; `take` copies it.
    pub fn receive<T>(&self, take: impl FnOnce(&[f32]) -> T) -> Result<T, ExchangeError> {
        assert!(self.place.stage > 0, "the first stage receives nothing");
        let from = self.place.rank() - self.place.tensor_ranks;
        drop(self.wait(|state| state.is_sent[from])?);
        let parcel = self.fabric.parcels[from].lock().map_err(|_| ExchangeError::Aborted)?;
        let taken = take(&parcel);
        drop(parcel);
        self.change(|state| state.is_sent[from] = false)?;
        Ok(taken)
    }

    /// Ends every wait of every rank with an error, now and from now on: this rank failed.
    pub fn abort(&self) {
        // The state is whole whenever the lock is free, so a poisoned lock changes nothing.
        let mut state = self.fabric.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.failed.get_or_insert(self.place.rank());
        self.fabric.changed.notify_all();
    }

    /// The rank that failed first.
    pub fn failed_rank(&self) -> Option<usize> {
        self.fabric.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).failed
    }

    /// Brings `x` and waits for the other tensor ranks; gives the turn under which all slots may be read.
    fn meet(&self, x: &[f32]) -> Result<usize, ExchangeError> {
        let stage = self.place.stage;
        // Nobody else can end this meeting: it lacks this rank.
        let turn = self.wait(|_| true)?.meetings[stage].turn;
        let mut slot = self.slot(self.place.tensor_rank, turn).write().map_err(|_| ExchangeError::Aborted)?;
        slot.clear();
        slot.extend_from_slice(x);
        drop(slot);
        self.change(|state| {
            let meeting = &mut state.meetings[stage];
            meeting.arrived += 1;
            if meeting.arrived == self.place.tensor_ranks {
                *meeting = Meeting { arrived: 0, turn: turn + 1 };
            }
        })?;
        drop(self.wait(|state| state.meetings[stage].turn > turn)?);
        Ok(turn)
    }

    fn slot(&self, tensor_rank: usize, turn: usize) -> &RwLock<Vec<f32>> {
        &self.fabric.slots[self.place.stage * self.place.tensor_ranks + tensor_rank][turn % 2]
    }

    fn wait(&self, until: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, ExchangeError> {
        let state = self.fabric.state.lock().map_err(|_| ExchangeError::Aborted)?;
        let waits = |state: &mut State| state.failed.is_none() && !until(state);
        let state = self.fabric.changed.wait_while(state, waits).map_err(|_| ExchangeError::Aborted)?;
        if state.failed.is_some() { Err(ExchangeError::Aborted) } else { Ok(state) }
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), ExchangeError> {
        let mut state = self.fabric.state.lock().map_err(|_| ExchangeError::Aborted)?;
        change(&mut state);
        self.fabric.changed.notify_all();
        Ok(())
    }
}
