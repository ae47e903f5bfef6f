//! Threads that share the tasks of one operation at a time.
//!
//! An operation is a number of tasks and a function. The caller works too; tasks are claimed from a counter, so that a
//! thread which the system has taken away delays nobody but its own task. Between operations workers spin for some
//! tens of microseconds, then sleep. Which thread runs a task never changes a result.
//!
//! `state` holds, from the high bits down: the number of the operation, whether it may still be joined, and how many
//! workers are inside. A worker joins by a compare-and-swap that fails once the operation is closed, so the caller may
//! return as soon as the count is zero.

use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard, Ordering, UnsafeCell,
    fence, spin_loop, yield_now,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

/// Looks at the state before a worker sleeps. A model needs one look that is in vain.
const SPINS: u32 = if cfg!(loom) { 2 } else { 4000 };
const OPEN: u64 = 1 << 16;
const STOP: u64 = 1 << 17;
const OPERATION: u64 = 1 << 18;
const INSIDE: u64 = OPEN - 1;

/// Most threads of a pool.
pub const MAX_THREADS: usize = 1024;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// The caller's thread and `threads - 1` workers.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panicked: AtomicBool,
    asleep: AtomicUsize,
    gate: Mutex<()>,
    bell: Condvar,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

// SAFETY: `job` is written only by the holder of `Pool::turn` while the operation is closed and nobody is inside, and
// read only by workers that are inside; `state` orders the two. The task that it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is followed only while the operation that set it is running.
unsafe impl Send for Shared {}

impl Pool {
    /// Starts the workers.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            gate: Mutex::new(()),
            bell: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for index in 1..threads.min(MAX_THREADS) {
            let shared = Arc::clone(&pool.shared);
            let worker = Builder::new().name(format!("bones-{index}")).spawn(move || shared.work())?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that work, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)`, each once, and returns when all are done. A panic in a task is resumed here
    /// after the others have ended. Must not be called from within a task.
    pub fn run(&self, tasks: usize, task: &Task<'_>) {
        if self.workers.is_empty() || tasks <= 1 {
            return (0..tasks).for_each(task);
        }
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. The task is used by workers inside this operation alone, and `close` below
        // waits for them on every path: nothing between can unwind.
        let erased = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: this thread holds `turn`, the last operation was closed, and nobody is inside.
        shared.job.with_mut(|job| unsafe { *job = Some(Job { task: erased, tasks }) });
        shared.next.store(0, Ordering::Relaxed);
        shared.open();
        let mine = catch_unwind(AssertUnwindSafe(|| shared.claim(tasks, task)));
        shared.close();
        // Taken before the turn ends: the next caller's tasks are not ours.
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        drop(turn);
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(!theirs, "a task panicked in a worker");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::Release);
        self.shared.ring();
        for worker in self.workers.drain(..) {
            // A worker catches what its tasks throw: it has nothing to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn open(&self) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store((state & !INSIDE).wrapping_add(OPERATION) | OPEN, Ordering::Release);
        // Pairs with the fence in `sleep`: either the sleeper is counted here, or it sees the new state there.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.ring();
        }
    }

    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < SPINS { spin_loop() } else { yield_now() }
        }
    }

    fn ring(&self) {
        // Taking the gate orders this after a sleeper's last look at the state.
        let gate = lock(&self.gate);
        self.bell.notify_all();
        drop(gate);
    }

    fn claim(&self, tasks: usize, task: &Task<'_>) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            task(index);
        }
    }

    fn work(&self) {
        let mut done = 0;
        while let Some(state) = self.wait(done) {
            done = state / OPERATION;
            if !self.join(state) {
                continue;
            }
            // SAFETY: this worker is inside, so the job was written before `open` and stays until it leaves.
            let job = self.job.with(|job| unsafe { *job });
            if let Some(Job { task, tasks }) = job {
                // SAFETY: `run` keeps the task alive until everybody has left.
                let task = unsafe { &*task };
                if catch_unwind(AssertUnwindSafe(|| self.claim(tasks, task))).is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Enters the operation seen in `state` unless it has been closed.
    fn join(&self, state: u64) -> bool {
        let mut seen = state;
        while seen & OPEN != 0 && seen / OPERATION == state / OPERATION {
            match self.state.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Waits for an operation after number `done`; `None` when the pool ends.
    fn wait(&self, done: u64) -> Option<u64> {
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & STOP != 0 {
                return None;
            }
            if state & OPEN != 0 && state / OPERATION != done {
                return Some(state);
            }
            spins += 1;
            if spins < SPINS {
                spin_loop();
            } else {
                self.sleep(state);
                spins = 0;
            }
        }
    }

    fn sleep(&self, seen: u64) {
        let mut gate = lock(&self.gate);
        self.asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Others joining or leaving changes the low bits only.
        while (self.state.load(Ordering::Acquire) ^ seen) & !INSIDE == 0 {
            gate = self.bell.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Nothing is ever left half-changed under these locks.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_operation_and_not_the_pool() {
        let pool = Pool::new(3).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(100, &|i| assert!(i != 57, "task 57"))));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(100, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
    }

    #[test]
    fn every_task_runs_once_whatever_the_threads() {
        for threads in 1..5 {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 3, 17, 300] {
                for _ in 0..50 {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(tasks, &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_and_many_callers_take_turns() {
        let pool = Pool::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let sum = AtomicUsize::new(0);
                        pool.run(8, &|i| {
                            // Long enough for the others to fall asleep now and then.
                            (0..i * 50).for_each(|_| std::hint::spin_loop());
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 28);
                    }
                });
            }
        });
    }
}
