//! The thread pool under loom: each test runs once for every order of events with at most two preemptions that the
//! memory model allows. Loom reports data races, deadlocks and threads that never end by itself.
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p tie-bones-cpu --test loom_pool`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use tie_bones_cpu::pool::Pool;

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

/// A number that only one thread may touch at a time, unlike an atomic: loom sees two that do.
struct Cell(UnsafeCell<usize>);

// SAFETY: loom ends the test when accesses are not ordered.
unsafe impl Sync for Cell {}

impl Cell {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn increment(&self) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }

    fn get(&self) -> usize {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }
}

/// Two tasks that wait for each other: they need two threads.
#[derive(Default)]
struct Meeting {
    there: Mutex<usize>,
    bell: Condvar,
}

impl Meeting {
    fn wait(&self) {
        let mut there = self.there.lock().unwrap();
        *there += 1;
        self.bell.notify_all();
        while *there < 2 {
            there = self.bell.wait(there).unwrap();
        }
    }
}

/// Runs tasks on cells, one each, and looks at them without any further synchronisation.
fn count_each(pool: &Pool, tasks: usize) {
    let cells: Vec<Cell> = (0..tasks).map(|_| Cell::new()).collect();
    pool.run(tasks, &|task| cells[task].increment());
    assert!(cells.iter().all(|cell| cell.get() == 1));
}

#[test]
fn every_task_runs_once_and_is_over_when_the_caller_returns() {
    explore(|| count_each(&Pool::new(2).unwrap(), 3));
}

#[test]
fn two_workers_share_the_tasks() {
    explore(|| count_each(&Pool::new(3).unwrap(), 2));
}

#[test]
fn a_worker_that_comes_late_takes_nothing_of_the_next_operation() {
    explore(|| {
        let pool = Pool::new(2).unwrap();
        count_each(&pool, 2);
        count_each(&pool, 2);
    });
}

#[test]
fn a_worker_that_slept_works() {
    explore(|| {
        let pool = Pool::new(2).unwrap();
        for _ in 0..2 {
            let meeting = Meeting::default();
            pool.run(2, &|_| meeting.wait());
        }
    });
}

#[test]
fn the_pool_ends_while_workers_spin_or_sleep() {
    explore(|| drop(Pool::new(3).unwrap()));
}

#[test]
fn two_callers_take_turns() {
    explore(|| {
        let pool = Arc::new(Pool::new(2).unwrap());
        let other = Arc::clone(&pool);
        let other = loom::thread::spawn(move || count_each(&other, 2));
        count_each(&pool, 2);
        other.join().unwrap();
    });
}

/// Whether the caller heard of a panic in task 1.
fn is_heard(pool: &Pool) -> bool {
    // Without the message of an ordinary panic.
    let task = |task| {
        if task == 1 {
            resume_unwind(Box::new("task 1"))
        }
    };
    catch_unwind(AssertUnwindSafe(|| pool.run(2, &task))).is_err()
}

#[test]
fn a_panic_is_heard_whoever_runs_the_task_and_the_pool_goes_on() {
    explore(|| {
        let pool = Pool::new(2).unwrap();
        assert!(is_heard(&pool));
        count_each(&pool, 2);
    });
}

#[test]
fn a_panic_reaches_the_caller_whose_task_it_was() {
    explore(|| {
        let pool = Arc::new(Pool::new(2).unwrap());
        let other = Arc::clone(&pool);
        let other = loom::thread::spawn(move || count_each(&other, 2));
        assert!(is_heard(&pool));
        other.join().unwrap();
    });
}
