//! The ranks of an engine at work: one on the caller's thread, several on a thread each.
//!
//! A task goes to every rank and the call returns when every rank has answered. A rank that fails or panics aborts the
//! exchange, so that none waits for it, and from then on the crew takes no task: its caches no longer agree.

use crate::backend::Backend;
use crate::engine::EngineError;
use crate::exchange::Link;
use crate::rank::Rank;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

type Task<B> = Box<dyn FnOnce(&mut Rank<B>) + Send>;

/// All ranks, in order.
pub(crate) struct Crew<B: Backend> {
    members: Members<B>,
    /// The rank that failed.
    failed: Option<usize>,
}

enum Members<B: Backend> {
    Caller(Box<Rank<B>>),
    Threads(Vec<Member<B>>),
}

struct Member<B: Backend> {
    link: Link,
    /// Taken when the crew ends: the thread leaves.
    tasks: Option<Sender<Task<B>>>,
    thread: Option<JoinHandle<()>>,
}

impl<B: Backend> Crew<B> {
    /// Starts a thread for each of several ranks.
    pub fn start(mut ranks: Vec<(Link, Rank<B>)>) -> Result<Self, EngineError<B::Error>> {
        let members = match ranks.pop() {
            Some((_, rank)) if ranks.is_empty() => Members::Caller(Box::new(rank)),
            last => {
                ranks.extend(last);
                Members::Threads(ranks.into_iter().map(Member::start).collect::<Result<_, _>>()?)
            }
        };
        Ok(Self { members, failed: None })
    }

    /// Runs a task on every rank; gives their answers in order, or the error of the rank that failed first.
    pub fn run<T: Send + 'static, F>(
        &mut self,
        mut task: impl FnMut(usize) -> F,
    ) -> Result<Vec<T>, EngineError<B::Error>>
    where
        F: FnOnce(&mut Rank<B>) -> Result<T, B::Error> + Send + 'static,
    {
        if let Some(rank) = self.failed {
            return Err(EngineError::Failed { rank });
        }
        let answers = match &mut self.members {
            Members::Caller(rank) => vec![guarded(0, rank, task(0))],
            Members::Threads(members) => ask(members, task),
        };
        let first = match &self.members {
            Members::Threads(members) => members.first().and_then(|member| member.link.failed_rank()),
            Members::Caller(_) => None,
        };
        self.settle(answers, first)
    }

    /// Runs a task that may borrow from the caller on the only rank; none where there are several.
    pub fn run_alone<T>(
        &mut self,
        task: impl FnOnce(&mut Rank<B>) -> Result<T, B::Error>,
    ) -> Option<Result<T, EngineError<B::Error>>> {
        let Members::Caller(rank) = &mut self.members else { return None };
        if let Some(rank) = self.failed {
            return Some(Err(EngineError::Failed { rank }));
        }
        let answer = guarded(0, rank, task);
        Some(self.settle(vec![answer], None).map(|mut answers| answers.remove(0)))
    }

    fn settle<T>(
        &mut self,
        answers: Vec<Result<T, EngineError<B::Error>>>,
        first: Option<usize>,
    ) -> Result<Vec<T>, EngineError<B::Error>> {
        let Some(failed) = first.or_else(|| answers.iter().position(Result::is_err)) else {
            return answers.into_iter().collect();
        };
        self.failed = Some(failed);
        match answers.into_iter().nth(failed) {
            Some(Err(error)) => Err(error),
            _ => Err(EngineError::Failed { rank: failed }),
        }
    }
}

/// Hands each member its task and collects the answers, in the order of the members.
fn ask<B: Backend, T: Send + 'static, F>(
    members: &[Member<B>],
    mut task: impl FnMut(usize) -> F,
) -> Vec<Result<T, EngineError<B::Error>>>
where
    F: FnOnce(&mut Rank<B>) -> Result<T, B::Error> + Send + 'static,
{
    let handed: Vec<Receiver<_>> =
        members.iter().enumerate().map(|(rank, member)| member.hand(rank, task(rank))).collect();
    // A member that is gone drops its end: it cannot keep us waiting.
    handed
        .iter()
        .enumerate()
        .map(|(rank, answer)| answer.recv().unwrap_or(Err(EngineError::Panicked { rank })))
        .collect()
}

impl<B: Backend> Member<B> {
    fn start((link, mut rank): (Link, Rank<B>)) -> Result<Self, EngineError<B::Error>> {
        let (sender, tasks) = channel::<Task<B>>();
        let number = link.place().rank();
        let run = move || tasks.iter().for_each(|task| task(&mut rank));
        let thread = Builder::new().name(format!("bones-rank-{number}")).spawn(run);
        let thread = thread.map_err(|source| EngineError::Thread { rank: number, source })?;
        Ok(Self { link, tasks: Some(sender), thread: Some(thread) })
    }

    fn hand<T: Send + 'static, F>(&self, number: usize, task: F) -> Receiver<Result<T, EngineError<B::Error>>>
    where
        F: FnOnce(&mut Rank<B>) -> Result<T, B::Error> + Send + 'static,
    {
        let (sender, answer) = channel();
        let link = self.link.clone();
        let task: Task<B> = Box::new(move |rank| {
            let outcome = guarded(number, rank, task);
            if outcome.is_err() {
                link.abort();
            }
            // Nobody waits any more when the engine is being dropped.
            let _ = sender.send(outcome);
        });
        if self.tasks.as_ref().is_none_or(|tasks| tasks.send(task).is_err()) {
            self.link.abort();
        }
        answer
    }
}

impl<B: Backend> Drop for Member<B> {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // Tasks stop their panics, so there is nothing to learn from the join.
            let _ = thread.join();
        }
    }
}

/// A panic ends here and says where, not what: its text may hold values of a request.
fn guarded<B: Backend, T>(
    number: usize,
    rank: &mut Rank<B>,
    task: impl FnOnce(&mut Rank<B>) -> Result<T, B::Error>,
) -> Result<T, EngineError<B::Error>> {
    match catch_unwind(AssertUnwindSafe(|| task(rank))) {
        Ok(outcome) => outcome.map_err(|error| EngineError::Backend { rank: number, error }),
        Err(_) => Err(EngineError::Panicked { rank: number }),
    }
}
