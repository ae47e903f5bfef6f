//! A rank that fails or panics ends the call for all, and nothing hangs.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use support::naive::Fault;
use support::packing::Form;
use support::samples::{Sample, tiny};
use support::steps::{batch, failing, sequence};
use tie_bones_model::engine::EngineError;
use tie_bones_model::exchange::{ExchangeError, Link};

type Wait = fn(&Link) -> Result<(), ExchangeError>;

/// Ends a test that would hang.
fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = channel();
    let worker = thread::spawn(move || sender.send(work()));
    let given = done.recv_timeout(Duration::from_secs(20)).expect("ends in time");
    worker.join().unwrap().unwrap();
    given
}

#[test]
fn a_rank_that_fails_at_any_operation_ends_the_call() {
    bounded(|| {
        let sample = Sample::new(tiny(), &[Form::F32]);
        for ranks in [(1, 1), (2, 1), (1, 2), (2, 2)] {
            for (rank, at) in (0..ranks.0 * ranks.1).flat_map(|rank| [0, 1, 9, 10, 20].map(|at| (rank, at))) {
                let fault = move |r| (r == rank).then_some(Fault::Error(at));
                let mut engine = failing(&sample, &[], ranks, fault).unwrap();
                let batch = batch(&[sequence(1, 3, -1)]);
                let error = engine.forward(&batch).unwrap_err();
                assert!(!error.is_callers_fault());
                assert_eq!(error.to_string(), format!("engine rank {rank}: injected"), "{ranks:?} at {at}");
                let later = [engine.forward(&batch).map(drop), engine.zero_blocks(&[0]), engine.write_blocks(&[], &[])];
                for error in later.map(Result::unwrap_err).iter().chain([&engine.read_blocks(&[0]).unwrap_err()]) {
                    assert_eq!(error.to_string(), format!("engine is unusable: rank {rank} failed earlier"));
                }
            }
        }
    });
}

#[test]
fn a_rank_that_panics_ends_the_call() {
    bounded(|| {
        let sample = Sample::new(tiny(), &[Form::F32]);
        for ranks in [(1, 1), (2, 1), (2, 2)] {
            let last = ranks.0 * ranks.1 - 1;
            let fault = move |rank| (rank == last).then_some(Fault::Panic(7));
            let mut engine = failing(&sample, &[], ranks, fault).unwrap();
            let error = engine.forward(&batch(&[sequence(1, 3, -1)])).unwrap_err();
            assert!(matches!(error, EngineError::Panicked { rank } if rank == last), "{error}");
            assert!(matches!(engine.zero_blocks(&[0]), Err(EngineError::Failed { .. })));
        }
    });
}

#[test]
fn a_rank_that_fails_between_steps_ends_the_engine() {
    bounded(|| {
        let sample = Sample::new(tiny(), &[Form::F32]);
        let mut engine = failing(&sample, &[], (2, 1), |rank| (rank == 1).then_some(Fault::Error(0))).unwrap();
        assert!(engine.zero_blocks(&[0]).unwrap_err().to_string().contains("rank 1: injected"));
        assert!(matches!(engine.forward(&batch(&[sequence(1, 3, -1)])), Err(EngineError::Failed { rank: 1 })));
    });
}

#[test]
fn an_engine_of_threads_ends_with_its_last_use() {
    bounded(|| {
        let sample = Sample::new(tiny(), &[Form::F32]);
        drop(failing(&sample, &[], (2, 2), |_| None).unwrap());
    });
}

#[test]
fn an_abort_ends_every_wait_now_and_later() {
    bounded(|| {
        let waits: [(usize, Wait); 4] = [
            (0, |link| link.all_reduce(&mut [1.0])),
            (1, |link| link.gather_columns(&[1.0], 1, &mut [])),
            (0, |link| link.send(&[1.0]).and_then(|()| link.send(&[1.0]))),
            (3, |link| link.receive(|_| ())),
        ];
        for (rank, wait) in waits {
            let links = Link::connect(2, 2);
            let waiting = links[rank].clone();
            let thread = thread::spawn(move || wait(&waiting));
            links[2].abort();
            assert!(matches!(thread.join().unwrap(), Err(ExchangeError::Aborted)));
            assert!(matches!(wait(&links[rank]), Err(ExchangeError::Aborted)));
            links[rank].abort();
            assert_eq!(links[rank].failed_rank(), Some(2));
        }
    });
}

#[test]
fn sums_are_the_same_bits_everywhere_and_columns_lie_in_order() {
    bounded(|| {
        let links = Link::connect(1, 3);
        let threads: Vec<_> = links
            .into_iter()
            .map(|link| {
                thread::spawn(move || {
                    let rank = link.place().tensor_rank;
                    let mut sums = Vec::new();
                    for round in 0..200 {
                        let mut x = [[1e8, -1e8, 0.5][rank] + round as f32, rank as f32];
                        link.all_reduce(&mut x).unwrap();
                        sums.push(x.map(f32::to_bits));
                    }
                    let own: Vec<f32> = (0..2).flat_map(|row| vec![(10 * row + rank) as f32; rank + 1]).collect();
                    let mut all = if rank == 0 { vec![0.0; 12] } else { vec![] };
                    link.gather_columns(&own, 2, &mut all).unwrap();
                    (sums, all)
                })
            })
            .collect();
        let given: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(given[0].0[0][0], ((1e8_f32 - 1e8) + 0.5).to_bits());
        assert!(given.iter().all(|(sums, _)| *sums == given[0].0));
        assert_eq!(given[0].1, [0., 1., 1., 2., 2., 2., 10., 11., 11., 12., 12., 12.]);
    });
}

#[test]
fn ranks_that_bring_different_amounts_are_told() {
    bounded(|| {
        let links = Link::connect(1, 2);
        let other = links[1].clone();
        let thread = thread::spawn(move || other.all_reduce(&mut [1.0, 2.0]));
        let own = links[0].all_reduce(&mut [1.0]).unwrap_err();
        assert_eq!(own.to_string(), "exchange: rank 1 brings 2 values, must bring 1");
        assert!(thread.join().unwrap().is_err());
        let other = links[1].clone();
        let thread = thread::spawn(move || other.gather_columns(&[1.0, 2.0], 1, &mut []));
        assert!(links[0].gather_columns(&[1.0], 1, &mut [0.0; 2]).is_err());
        thread.join().unwrap().unwrap();
    });
}
